// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is kept of a device of another domain's, and of an open file of it: as long
 * as anybody uses it.
 */
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "devfile.h"

/* Open files by the kernel's. A node of another class has operations of that class, which pass calls on. */
static DEFINE_HASHTABLE(open_files, 8);
static DEFINE_SPINLOCK(open_files_lock);

void remember_open(struct open_file *open, struct file *file)
{
	open->file = file;
	spin_lock(&open_files_lock);
	hash_add(open_files, &open->hashed, (unsigned long)file);
	spin_unlock(&open_files_lock);
}

void forget_open(struct open_file *open)
{
	spin_lock(&open_files_lock);
	hash_del(&open->hashed);
	spin_unlock(&open_files_lock);
}

struct open_file *open_of(const struct file *file)
{
	struct open_file *open, *found = NULL;

	spin_lock(&open_files_lock);
	hash_for_each_possible(open_files, open, hashed, (unsigned long)file)
		if (open->file == file)
			found = open;
	spin_unlock(&open_files_lock);
	return found;
}

struct mirror *mirror_new(void)
{
	struct mirror *mirror = kzalloc(sizeof(*mirror), GFP_KERNEL);
	unsigned int i;

	if (!mirror)
		return NULL;
	kref_init(&mirror->users);
	spin_lock_init(&mirror->lock);
	init_waitqueue_head(&mirror->free);
	mutex_init(&mirror->spaces_lock);
	INIT_LIST_HEAD(&mirror->spaces);
	mutex_init(&mirror->opens_lock);
	INIT_LIST_HEAD(&mirror->opens);
	init_rwsem(&mirror->maps_lock);
	mirror->slots = kvcalloc(SLOTS, sizeof(*mirror->slots), GFP_KERNEL);
	/* Pages of their own: they are what the back end reaches. */
	mirror->memory = alloc_pages_exact(SLOTS * SLOT_SIZE,
					   GFP_KERNEL | __GFP_ZERO);
	mirror->ranges = alloc_pages_exact(SLOTS * RANGES_SIZE,
					   GFP_KERNEL | __GFP_ZERO);
	mirror->lanes = alloc_pages_exact(LANES_SIZE, GFP_KERNEL | __GFP_ZERO);
	mirror->maps_used = bitmap_zalloc(MAP_PAGES, GFP_KERNEL);
	if (!mirror->slots || !mirror->memory || !mirror->ranges ||
	    !mirror->lanes || !mirror->maps_used) {
		mirror_free(&mirror->users);
		return NULL;
	}
	for (i = 0; i < SLOTS; i++) {
		struct slot *slot = &mirror->slots[i];

		slot->request = mirror->memory + i * SLOT_SIZE;
		slot->ranges = mirror->ranges + i * RANGES_SIZE;
		slot->answer = (void *)(slot->request + 1);
		init_completion(&slot->done);
	}
	return mirror;
}

void mirror_free(struct kref *users)
{
	struct mirror *mirror = container_of(users, struct mirror, users);

	if (mirror->memory)
		free_pages_exact(mirror->memory, SLOTS * SLOT_SIZE);
	if (mirror->ranges)
		free_pages_exact(mirror->ranges, SLOTS * RANGES_SIZE);
	if (mirror->lanes)
		free_pages_exact(mirror->lanes, LANES_SIZE);
	kvfree(mirror->slots);
	bitmap_free(mirror->maps_used);
	kfree(mirror);
}

void file_free(struct kref *users)
{
	struct open_file *file = container_of(users, struct open_file, users);

	kref_put(&file->mirror->users, mirror_free);
	put_pid(file->opener);
	kfree(file);
}
