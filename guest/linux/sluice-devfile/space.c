// SPDX-License-Identifier: GPL-2.0-only
/*
 * Address spaces of programs that have a file open. Each has a number, by which the
 * back end knows it, and a lane, if one is free.
 */
#include <linux/rculist.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "devfile.h"

void leave_space(struct mirror *mirror, struct space *space, u64 life)
{
	bool last;

	mutex_lock(&mirror->spaces_lock);
	last = !--space->users;
	if (last)
		list_del(&space->entry);
	mutex_unlock(&mirror->spaces_lock);
	if (!last)
		return;
	notice_end(mirror, space, life);
	mmdrop(space->mm);
	kfree(space);
}

static struct space *enter_space(struct mirror *mirror)
{
	struct space *space;

	mutex_lock(&mirror->spaces_lock);
	list_for_each_entry(space, &mirror->spaces, entry)
		if (space->mm == current->mm) {
			space->users++;
			goto out;
		}
	space = kzalloc(sizeof(*space), GFP_KERNEL);
	if (!space)
		goto out;
	mmgrab(current->mm);
	space->mm = current->mm;
	space->number = ++mirror->last_space;
	space->users = 1;
	space->lane = take_lane(mirror);
	list_add(&space->entry, &mirror->spaces);
out:
	mutex_unlock(&mirror->spaces_lock);
	return space;
}

/* The caller's address space, which the file now uses; NULL: no memory. */
struct space *space_of(struct open_file *file)
{
	struct space *space = NULL;
	struct use *use;

	/* They come and stay until the file is closed. */
	list_for_each_entry_lockless(use, &file->uses, entry)
		if (use->space->mm == current->mm)
			return use->space;
	mutex_lock(&file->lock);
	list_for_each_entry(use, &file->uses, entry)
		if (use->space->mm == current->mm) {
			space = use->space;
			goto out;
		}
	use = kzalloc(sizeof(*use), GFP_KERNEL);
	if (!use)
		goto out;
	use->space = enter_space(file->mirror);
	if (!use->space) {
		kfree(use);
		goto out;
	}
	list_add_rcu(&use->entry, &file->uses);
	space = use->space;
out:
	mutex_unlock(&file->lock);
	return space;
}
