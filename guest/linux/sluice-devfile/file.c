// SPDX-License-Identifier: GPL-2.0-only
/*
 * Open files: each has a number, by which the back end knows it, and belongs to one
 * life of its device.
 */
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "devfile.h"

/* One under a number that is free. */
struct open_file *new_file(struct mirror *mirror, struct address_space *mapping)
{
	struct open_file *open = kzalloc(sizeof(*open), GFP_KERNEL);
	unsigned long flags;

	if (!open)
		return ERR_PTR(-ENOMEM);
	kref_init(&open->users);
	mutex_init(&open->lock);
	INIT_LIST_HEAD(&open->uses);
	init_waitqueue_head(&open->wait);
	open->mirror = mirror;
	open->mapping = mapping;
	open->opener = get_pid(task_tgid(current));
	spin_lock_irqsave(&mirror->lock, flags);
	open->life = mirror->life;
	open->device = mirror->identity;
	open->number =
		find_first_zero_bit(mirror->files, SLUICE_DEVFILE_MAX_FILES);
	if (open->number < SLUICE_DEVFILE_MAX_FILES)
		__set_bit(open->number, mirror->files);
	spin_unlock_irqrestore(&mirror->lock, flags);
	if (open->number == SLUICE_DEVFILE_MAX_FILES) {
		put_pid(open->opener);
		kfree(open);
		return ERR_PTR(-EMFILE);
	}
	kref_get(&mirror->users);
	return open;
}

/* A program has it by this. It has a place, which the other side keeps; its memory is found when the life ends. */
void add_open(struct open_file *open, struct file *file)
{
	struct mirror *mirror = open->mirror;

	/* Who reads or writes says where, or is not asked. */
	stream_open(file_inode(file), file);
	file->f_mode |= FMODE_LSEEK | FMODE_PREAD | FMODE_PWRITE;
	remember_open(open, file);
	mutex_lock(&mirror->opens_lock);
	list_add(&open->entry, &mirror->opens);
	mutex_unlock(&mirror->opens_lock);
}

/* Nobody here uses it any more. */
void end_file(struct open_file *open)
{
	struct mirror *mirror = open->mirror;

	notice_release(open);
	while (!list_empty(&open->uses)) {
		struct use *use =
			list_first_entry(&open->uses, struct use, entry);

		list_del(&use->entry);
		leave_space(mirror, use->space, open->life);
		kfree(use);
	}
	iput(open->of);
	kref_put(&open->users, file_free);
}

/* A request of a file for the caller; an error, or NULL for none of them. */
struct slot *begin(struct open_file *file, u32 operation, unsigned int flags)
{
	struct mirror *mirror = file->mirror;
	struct slot *slot;
	struct space *space;

	if (!current->mm)
		return ERR_PTR(-EINVAL);
	slot = take_slot(mirror, false);
	if (!slot && wait_event_interruptible(
			     mirror->free,
			     (slot = take_slot(mirror, false)) ||
				     READ_ONCE(mirror->life) != file->life))
		return ERR_PTR(-ERESTARTSYS);
	if (!slot)
		return ERR_PTR(-ENODEV);
	space = space_of(file);
	if (!space) {
		free_slot(mirror, slot);
		return ERR_PTR(-ENOMEM);
	}
	slot->request->operation = cpu_to_le32(operation);
	slot->space = space;
	slot->request->space = cpu_to_le64(space->number);
	slot->request->file = cpu_to_le32(file->number);
	slot->request->flags = cpu_to_le32(flags);
	return slot;
}
