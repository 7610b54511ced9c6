// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests to the back end: slots for them, their way through the queue, and what
 * of the caller's memory they may reach, which is faulted in and pinned before it
 * is declared.
 */
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/sched.h>

#include "devfile.h"

/* What ought to be answered at once, and an operation that was interrupted. */
unsigned int patience_ms = 10000;
module_param(patience_ms, uint, 0644);
MODULE_PARM_DESC(patience_ms,
		 "time after which an operation that cannot block, or that was interrupted, fails");

/* A slot of those for notices, or for operations; or NULL. */
struct slot *take_slot(struct mirror *mirror, bool notice)
{
	u32 i = notice ? SLUICE_DEVFILE_MAX_OPERATIONS : 0;
	u32 end = notice ? SLOTS : SLUICE_DEVFILE_MAX_OPERATIONS;
	struct slot *found = NULL;

	for (; i < end && !found; i++) {
		struct slot *slot = &mirror->slots[i];

		if (READ_ONCE(slot->state) == SLOT_FREE &&
		    cmpxchg(&slot->state, SLOT_FREE, SLOT_TAKEN) == SLOT_FREE)
			found = slot;
	}
	/* Its request is as somebody left it; of what is its own everything is as it was to begin with. */
	return found;
}

/* With mirror->lock held. Returns the file to let go of, if there is one. */
struct open_file *answered(struct mirror *mirror, struct slot *slot, s64 result)
{
	struct open_file *file = NULL;

	slot->result = result;
	if (slot->freed)
		bitmap_clear(mirror->maps_used, slot->first, slot->freed);
	if (!result && slot->frees_file)
		__clear_bit(slot->freed_file, mirror->files);
	if (!result)
		free_lane(mirror, slot->freed_lane);
	else if (slot->freed_lane)
		__set_bit(lane_number(mirror, slot->freed_lane),
			  mirror->lanes_lost);
	frees_nothing(slot);
	switch (slot->state) {
	case SLOT_WAITED:
		slot->state = SLOT_ANSWERED;
		complete(&slot->done);
		return NULL;
	case SLOT_AWAIT:
		file = slot->file;
		file->awaited = 0;
		if (result > 0)
			WRITE_ONCE(file->ready, result & U16_MAX);
		wake_up_interruptible_all(&file->wait);
		kill_fasync(&file->signalled, SIGIO,
			    result > 0 && result & POLLIN ? POLL_IN : POLL_OUT);
		break;
	default:
		break;
	}
	slot->state = SLOT_FREE;
	wake_up(&mirror->free);
	return file;
}

void queue_answered(struct virtqueue *queue)
{
	struct mirror *mirror = queue->vdev->priv;
	unsigned long flags;
	unsigned int len;
	struct slot *slot;

	do {
		struct open_file *file = NULL;

		spin_lock_irqsave(&mirror->lock, flags);
		slot = mirror->queue ? virtqueue_get_buf(queue, &len) : NULL;
		if (slot)
			file = answered(mirror, slot,
					len < sizeof(*slot->answer) ?
						-EIO :
						(s64)le64_to_cpu(READ_ONCE(
							slot->answer->result)));
		spin_unlock_irqrestore(&mirror->lock, flags);
		if (file)
			kref_put(&file->users, file_free);
	} while (slot);
}

/* Hands a request over, if this is still the life that it is for. */
int submit(struct mirror *mirror, struct slot *slot, enum slot_state state,
	   u64 life)
{
	struct scatterlist out, in, *parts[2] = { &out, &in };
	unsigned long flags;
	int error = -ENODEV;
	bool notify = false;

	reinit_completion(&slot->done);
	memset(slot->answer, 0, sizeof(*slot->answer));
	sg_init_one(&out, slot->request, sizeof(*slot->request));
	sg_init_one(&in, slot->answer, sizeof(*slot->answer));
	spin_lock_irqsave(&mirror->lock, flags);
	if (mirror->queue && mirror->life == life) {
		error = virtqueue_add_sgs(mirror->queue, parts, 1, 1, slot,
					  GFP_ATOMIC);
		notify = !error && virtqueue_kick_prepare(mirror->queue);
	}
	if (!error)
		slot->state = state;
	if (notify)
		virtqueue_notify(mirror->queue);
	spin_unlock_irqrestore(&mirror->lock, flags);
	return error;
}

/* Says something that nobody waits for the answer of, after which a lane or a file's number may be free. */
static void say(struct mirror *mirror, u32 operation, u32 tag, u64 space,
		u32 file, u64 life, struct devfile_lane *freed_lane,
		bool frees_file)
{
	struct slot *slot = NULL;
	unsigned long flags;

	wait_event_timeout(mirror->free,
			   (slot = take_slot(mirror, true)) ||
				   READ_ONCE(mirror->life) != life,
			   msecs_to_jiffies(patience_ms));
	if (!slot)
		goto unsaid;
	reach_nothing(slot);
	slot->request->operation = cpu_to_le32(operation);
	slot->request->tag = cpu_to_le32(tag);
	slot->request->space = cpu_to_le64(space);
	slot->request->file = cpu_to_le32(file);
	slot->freed_lane = freed_lane;
	slot->frees_file = frees_file;
	slot->freed_file = file;
	if (!submit(mirror, slot, SLOT_ALONE, life))
		return;
	frees_nothing(slot);
	free_slot(mirror, slot);
unsaid:
	/* In another life nobody knows the lane. */
	spin_lock_irqsave(&mirror->lock, flags);
	if (mirror->life != life)
		free_lane(mirror, freed_lane);
	spin_unlock_irqrestore(&mirror->lock, flags);
}

void notice(struct mirror *mirror, u32 operation, u32 tag, u64 space, u32 file,
	    u64 life)
{
	say(mirror, operation, tag, space, file, life, NULL, false);
}

void notice_end(struct mirror *mirror, const struct space *space, u64 life)
{
	say(mirror, SLUICE_DEVFILE_FORGET, 0, space->number, 0, life,
	    space->lane, false);
}

void notice_release(struct open_file *file)
{
	say(file->mirror, SLUICE_DEVFILE_RELEASE, 0, 0, file->number,
	    file->life, NULL, !file->lost);
}

void unpin(struct slot *slot)
{
	struct page **pages = slot->pages;
	unsigned int i;

	for (i = 0; i < slot->count; i++) {
		u32 ways = le32_to_cpu(slot->ranges[i].ways);

		unpin_user_pages_dirty_lock(pages, slot->pages_of[i],
					    ways & SLUICE_DEVFILE_OUT);
		pages += slot->pages_of[i];
	}
	slot->count = 0;
	slot->page_count = 0;
}

/* Adds memory of the caller to what the operation may reach. */
int reach(struct slot *slot, u64 address, u32 bytes, u32 ways)
{
	struct devfile_range *range;
	unsigned int count;
	int got;

	if (!bytes)
		return 0;
	count = (offset_in_page(address) + bytes + PAGE_SIZE - 1) >> PAGE_SHIFT;
	if (slot->count == SLUICE_DEVFILE_MAX_RANGES ||
	    bytes > SLUICE_DEVFILE_MAX_BYTES ||
	    count > MOST_PAGES - slot->page_count)
		return -E2BIG;
	got = pin_user_pages_fast(address & PAGE_MASK, count,
				  ways & SLUICE_DEVFILE_OUT ? FOLL_WRITE : 0,
				  slot->pages + slot->page_count);
	if (got != count) {
		if (got > 0)
			unpin_user_pages(slot->pages + slot->page_count, got);
		return -EFAULT;
	}
	range = &slot->ranges[slot->count];
	range->address = cpu_to_le64(address);
	range->bytes = cpu_to_le32(bytes);
	range->ways = cpu_to_le32(ways);
	slot->pages_of[slot->count++] = count;
	slot->page_count += count;
	return 0;
}
