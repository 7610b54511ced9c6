// SPDX-License-Identifier: GPL-2.0-only
/*
 * Device files of another domain, mirrored in this one: the front end.
 *
 * Each is a virtio device with one queue (crates/hypercall, devfile.rs). An
 * operation on the file becomes a request, on which the caller sleeps. What of
 * the caller's memory the operation may reach is faulted in, pinned and
 * declared to the hypervisor before, and withdrawn after; the domain that has
 * the device reaches nothing else. The node is there while a back end answers.
 *
 * What is mapped of a file are pages of the other domain, in memory of the device
 * (virtio shared memory) of which this side says what is free.
 *
 * A life of the device ends when it is reset: its requests fail with -EIO, and
 * files that were opened in it with -ENODEV, until they are closed. What is
 * mapped of them is gone: SIGBUS.
 *
 * Each address space has a lane, a page in which the back end looks for the next
 * request for a while after it has answered one: then neither side has to be
 * woken (crates/devfile, lane.rs).
 *
 * Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the
 * Device File Boundary", 3.1, 5.1.
 *
 * Locks: mirrors_lock; mirror->spaces_lock; file->lock (each alone);
 * mirror->opens_lock; mirror->maps_lock (page faults against the end of a life);
 * mirror->lock (innermost, interrupts off).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/anon_inodes.h>
#include <linux/cdev.h>
#include <linux/bitmap.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/kvm_para.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/rculist.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "input.h"
#include "sluice.h"
#include "tables.h"

#define MINORS 64
/* Most bytes that one read or write moves: programs ask again. */
#define MOST_BYTES 0x10000U
/* Pages of all ranges of an operation: each range may begin and end in one. */
#define MOST_PAGES \
	(SLUICE_DEVFILE_MAX_BYTES / PAGE_SIZE + 2 * SLUICE_DEVFILE_MAX_RANGES)
/* Requests that nobody waits for, which have no tag. */
#define NOTICES 24
#define SLOTS (SLUICE_DEVFILE_MAX_OPERATIONS + NOTICES)
/* Bytes of a request and its answer, which so lie in one page. */
#define SLOT_SIZE 512
#define RANGES_SIZE \
	(SLUICE_DEVFILE_MAX_RANGES * SLUICE_DEVFILE_RANGE_SIZE)

#define LANES_SIZE (SLUICE_DEVFILE_MAX_SPACES * PAGE_SIZE)

#define MAP_PAGES (SLUICE_DEVFILE_MAPS_SIZE >> PAGE_SHIFT)
/* Pages that one fault maps: programs look at neighbouring ones soon. */
#define PAGES_PER_FAULT 16

/* What ought to be answered at once, and an operation that was interrupted. */
static unsigned int patience_ms = 10000;
module_param(patience_ms, uint, 0644);
MODULE_PARM_DESC(patience_ms,
		 "time after which an operation that cannot block, or that was interrupted, fails");

/*
 * Who waits longer than a fresh answer takes is put to sleep. The other side
 * looks for requests as long as it was told to.
 */
static unsigned int poll_us = 200;
module_param(poll_us, uint, 0644);
MODULE_PARM_DESC(poll_us,
		 "time for which an operation looks for its answer; 0: it sleeps at once, and has the other domain woken");

struct devfile_range {
	__le64 address;
	__le32 bytes;
	__le32 ways;
};

struct devfile_request {
	struct_group(header,
		__le32 operation;
		__le32 tag;
		__le64 space;
		__le32 file;
		__le32 flags;
		__le64 arguments[3];
		__le32 count;
		__le32 lane;
	);
	struct devfile_range ranges[SLUICE_DEVFILE_MAX_RANGES];
};

struct devfile_answer {
	__le64 result;
	__le64 zero;
};

/* The other side may write all of it at any time. */
struct devfile_lane {
	u32 state;
	__le32 posted;
	__le64 apart[7];
	__le64 result;
	__le32 answered;
	__le32 rest;
	__le64 apart_too[6];
	struct devfile_request request;
};

struct devfile_config {
	__le32 version;
	__le32 mode;
	char node[SLUICE_DEVFILE_NODE_SIZE];
	char class[SLUICE_DEVFILE_CLASS_SIZE];
};

static_assert(sizeof(struct devfile_range) == SLUICE_DEVFILE_RANGE_SIZE);
static_assert(sizeof(struct devfile_request) == SLUICE_DEVFILE_REQUEST_SIZE);
static_assert(sizeof(struct devfile_answer) == SLUICE_DEVFILE_ANSWER_SIZE);
static_assert(sizeof(struct devfile_config) == SLUICE_DEVFILE_CONFIG_SIZE);
static_assert(offsetof(struct devfile_lane, state) ==
	      SLUICE_DEVFILE_LANE_STATE);
static_assert(offsetof(struct devfile_lane, result) ==
	      SLUICE_DEVFILE_LANE_RESULT);
static_assert(offsetof(struct devfile_lane, request) ==
	      SLUICE_DEVFILE_LANE_REQUEST);
static_assert(sizeof(struct devfile_lane) <= PAGE_SIZE);
static_assert(offsetof(struct devfile_request, ranges) ==
	      SLUICE_DEVFILE_REQUEST_RANGES);
static_assert(SLUICE_DEVFILE_REQUEST_SIZE + SLUICE_DEVFILE_ANSWER_SIZE <=
	      SLOT_SIZE);

enum slot_state {
	SLOT_FREE,
	SLOT_TAKEN, /* somebody's, who has not handed it over */
	SLOT_WAITED, /* somebody sleeps until it is answered */
	SLOT_ANSWERED,
	SLOT_ALONE, /* nobody does */
	SLOT_AWAIT, /* a file is to be told */
};

/* A request that is under way, or room for one. Its tag is its place. */
struct slot {
	struct devfile_request *request;
	struct devfile_answer *answer;
	u32 state; /* enum slot_state; mirror->lock, but for whose it is */
	struct completion done;
	s64 result;
	struct open_file *file; /* of SLOT_AWAIT */
	u32 first, freed; /* pages of maps that are free once it is answered */
	struct devfile_lane *freed_lane; /* so is this */
	struct space *space; /* the caller's */
	/* What is declared, where the back end cannot alter it. */
	struct devfile_range *ranges;
	unsigned int count;
	unsigned int pages_of[SLUICE_DEVFILE_MAX_RANGES];
	unsigned int page_count;
	struct page *pages[MOST_PAGES];
};

/* An address space that has a file open. */
struct space {
	struct list_head entry; /* in mirror->spaces */
	struct mm_struct *mm; /* its structure is held, not its memory */
	u64 number;
	unsigned int users;
	struct devfile_lane *lane; /* NULL: all are taken */
	unsigned long posting; /* bit 0: the lane is in use */
	u32 posted; /* number of the last request there */
	/* Requests that go by the queue, since waiting was in vain; as many as last time. */
	u32 rest, rested;
};

/* A file's use of an address space. */
struct use {
	struct list_head entry; /* in file->uses */
	struct space *space;
};

struct open_file {
	struct kref users; /* the file, and requests that tell it */
	struct list_head entry; /* in mirror->opens */
	struct address_space *mapping;
	struct mirror *mirror;
	u32 number;
	u32 frame; /* bytes of one, for a sound card */
	u32 told; /* flags that the other side has been told of */
	u64 life;
	struct mutex lock; /* uses */
	struct list_head uses;
	wait_queue_head_t wait;
	__poll_t awaited; /* mirror->lock */
	u32 ready; /* what it was told of, and nobody has heard yet */
	__poll_t wanted; /* what was asked for last, by who may still listen */
	struct fasync_struct *signalled; /* who gets SIGIO */
	struct inode *of; /* held: that of the file it was made from, by an ioctl */
	bool lost; /* the other side may have it, or make it yet */
};

/* A part of a file that a process, and those that it forks, have mapped. */
struct region {
	struct kref users; /* areas of memory */
	struct open_file *file; /* which such an area keeps open */
	u64 space;
	u64 start; /* of the file, in pages */
	u32 first, pages; /* of the device's memory of maps */
};

/* A device. */
struct mirror {
	struct kref users; /* the driver, and open files */
	unsigned int minor;
	u32 slot; /* on the bus */
	dev_t number;
	char node[SLUICE_DEVFILE_NODE_SIZE];
	umode_t mode;
	const struct lead *leads; /* of its class; NULL: none are known */
	struct device *device; /* NULL: there is no node of our own class */
	struct input_face *input; /* NULL: there is none of an input device */
	struct work_struct publish, restart;

	spinlock_t lock;
	struct virtio_device *vdev;
	struct virtqueue *queue; /* NULL: no request can be made */
	u64 life;
	void *memory, *ranges;
	struct devfile_lane *lanes; /* a page each */
	dma_addr_t lane_addresses[SLUICE_DEVFILE_MAX_SPACES]; /* 0: none */
	DECLARE_BITMAP(lanes_used, SLUICE_DEVFILE_MAX_SPACES);
	/* Of those the ones that somebody may look at yet, in this life. */
	DECLARE_BITMAP(lanes_lost, SLUICE_DEVFILE_MAX_SPACES);
	struct slot *slots;
	DECLARE_BITMAP(files, SLUICE_DEVFILE_MAX_FILES);
	wait_queue_head_t free; /* slots */
	/* Requests that were posted, and how many of them went on to the queue. */
	atomic_long_t posted, adopted;

	struct mutex spaces_lock;
	struct list_head spaces;
	u64 last_space;

	struct mutex opens_lock;
	struct list_head opens;
	struct rw_semaphore maps_lock;
	struct virtio_shm_region maps; /* no length: there is none */
	void *maps_memory; /* for the kind of memory only */
	unsigned long *maps_used; /* mirror->lock */
};

static const struct file_operations devfile_operations;
static struct class *devfile_class;
static dev_t first_number;
static struct cdev devfile_cdev;
static DEFINE_MUTEX(mirrors_lock); /* mirrors */
static struct mirror *mirrors[MINORS];

static void mirror_free(struct kref *users)
{
	struct mirror *mirror = container_of(users, struct mirror, users);

	free_pages_exact(mirror->memory, SLOTS * SLOT_SIZE);
	free_pages_exact(mirror->ranges, SLOTS * RANGES_SIZE);
	free_pages_exact(mirror->lanes, LANES_SIZE);
	kvfree(mirror->slots);
	bitmap_free(mirror->maps_used);
	kfree(mirror);
}

static void file_free(struct kref *users)
{
	struct open_file *file = container_of(users, struct open_file, users);

	kref_put(&file->mirror->users, mirror_free);
	kfree(file);
}

static u32 tag_of(struct mirror *mirror, struct slot *slot)
{
	return slot - mirror->slots;
}

/* Requests. */

/* A slot of those for notices, or for operations; or NULL. */
static struct slot *take_slot(struct mirror *mirror, bool notice)
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
	if (found) {
		found->request->flags = 0;
		found->request->count = 0;
		found->request->lane = 0;
		memset(found->request->arguments, 0,
		       sizeof(found->request->arguments));
		found->count = 0;
		found->page_count = 0;
		found->file = NULL;
		found->freed = 0;
		found->freed_lane = NULL;
	}
	return found;
}

/* One that has not been handed over, or is answered. */
static void free_slot(struct mirror *mirror, struct slot *slot)
{
	smp_store_release(&slot->state, SLOT_FREE);
	if (wq_has_sleeper(&mirror->free))
		wake_up(&mirror->free);
}

static u32 lane_number(struct mirror *mirror, void *lane)
{
	return (lane - (void *)mirror->lanes) / PAGE_SIZE;
}

/* With mirror->lock held. */
static void free_lane(struct mirror *mirror, struct devfile_lane *lane)
{
	if (lane)
		__clear_bit(lane_number(mirror, lane), mirror->lanes_used);
}

/* With mirror->lock held. Returns the file to let go of, if there is one. */
static struct open_file *answered(struct mirror *mirror, struct slot *slot,
				  s64 result)
{
	struct open_file *file = NULL;

	slot->result = result;
	if (slot->freed)
		bitmap_clear(mirror->maps_used, slot->first, slot->freed);
	if (!result)
		free_lane(mirror, slot->freed_lane);
	else if (slot->freed_lane)
		__set_bit(lane_number(mirror, slot->freed_lane),
			  mirror->lanes_lost);
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

static void queue_answered(struct virtqueue *queue)
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
static int submit(struct mirror *mirror, struct slot *slot,
		  enum slot_state state, u64 life)
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

/* Says something that nobody waits for the answer of, after which a lane may be free. */
static void notice_with(struct mirror *mirror, u32 operation, u32 tag,
			u64 space, u32 file, u64 life,
			struct devfile_lane *freed)
{
	struct slot *slot = NULL;
	unsigned long flags;

	wait_event_timeout(mirror->free,
			   (slot = take_slot(mirror, true)) ||
				   READ_ONCE(mirror->life) != life,
			   msecs_to_jiffies(patience_ms));
	if (!slot)
		goto unsaid;
	slot->request->operation = cpu_to_le32(operation);
	slot->request->tag = cpu_to_le32(tag);
	slot->request->space = cpu_to_le64(space);
	slot->request->file = cpu_to_le32(file);
	slot->freed_lane = freed;
	if (!submit(mirror, slot, SLOT_ALONE, life))
		return;
	slot->freed_lane = NULL;
	free_slot(mirror, slot);
unsaid:
	/* In another life nobody knows the lane. */
	spin_lock_irqsave(&mirror->lock, flags);
	if (mirror->life != life)
		free_lane(mirror, freed);
	spin_unlock_irqrestore(&mirror->lock, flags);
}

static void notice(struct mirror *mirror, u32 operation, u32 tag, u64 space,
		   u32 file, u64 life)
{
	notice_with(mirror, operation, tag, space, file, life, NULL);
}

static void unpin(struct slot *slot)
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
static int reach(struct slot *slot, u64 address, u32 bytes, u32 ways)
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

/*
 * Sleeps until a request is answered: as long as that takes, or as is said. It
 * may not have been when this returns.
 */
static s64 await(struct mirror *mirror, struct slot *slot, bool blocks,
		 u64 life)
{
	unsigned long patience = msecs_to_jiffies(patience_ms);
	unsigned long flags;
	bool interrupted = false, answered;
	long left;

	if (blocks)
		left = wait_for_completion_interruptible(&slot->done) ? -1 : 1;
	else
		left = wait_for_completion_killable_timeout(&slot->done,
							    patience);
	if (left <= 0) {
		interrupted = left < 0;
		notice(mirror, SLUICE_DEVFILE_CANCEL, tag_of(mirror, slot), 0,
		       0, life);
		wait_for_completion_timeout(&slot->done, patience);
	}
	spin_lock_irqsave(&mirror->lock, flags);
	answered = slot->state == SLOT_ANSWERED;
	spin_unlock_irqrestore(&mirror->lock, flags);
	if (!answered)
		return interrupted ? -EINTR : -EIO;
	if (slot->result == -EINTR && interrupted)
		return -ERESTARTSYS;
	return slot->result;
}

/* Lanes. */

/* Where the lane of the caller's address space is, for who looks there; 0: it is not to. */
static u32 lane_page(struct mirror *mirror, struct slot *slot)
{
	struct devfile_lane *lane = slot->space->lane;
	u64 page;

	if (!lane || !READ_ONCE(poll_us))
		return 0;
	page = mirror->lane_addresses[lane_number(mirror, lane)] >> PAGE_SHIFT;
	/* Beyond 16 TiB it has no number. */
	return page <= U32_MAX ? page : 0;
}

/* Whether the other side has been told how calls on the file wait now. */
static bool is_told(struct open_file *file, u32 flags)
{
	return READ_ONCE(file->told) == (O_CREAT | (flags & O_NONBLOCK));
}

static void tell(struct open_file *file, u32 flags)
{
	/* The other bit says that anything has been said. */
	WRITE_ONCE(file->told, O_CREAT | (flags & O_NONBLOCK));
}

/* Leaves a request in the lane of the caller's address space, if the other side looks for one there. */
static bool post(struct slot *slot)
{
	struct space *space = slot->space;
	struct devfile_lane *lane = space->lane;
	unsigned int i;

	if (!lane || !READ_ONCE(poll_us) ||
	    READ_ONCE(lane->state) != SLUICE_DEVFILE_LANE_OPEN)
		return false;
	if (READ_ONCE(space->rest)) {
		WRITE_ONCE(space->rest, space->rest - 1);
		return false;
	}
	if (test_and_set_bit_lock(0, &space->posting))
		return false;
	memcpy(&lane->request.header, &slot->request->header,
	       sizeof(lane->request.header));
	for (i = 0; i < slot->count; i++)
		lane->request.ranges[i] = slot->request->ranges[i];
	WRITE_ONCE(lane->posted, cpu_to_le32(++space->posted));
	if (cmpxchg(&lane->state, SLUICE_DEVFILE_LANE_OPEN,
		    SLUICE_DEVFILE_LANE_POSTED) == SLUICE_DEVFILE_LANE_OPEN)
		return true;
	clear_bit_unlock(0, &space->posting);
	return false;
}

/* Looks for the answer to what was posted. It may not be there when this returns. */
static bool look(struct space *space, s64 *result)
{
	struct devfile_lane *lane = space->lane;
	u64 end = 0;
	u32 i;

	for (i = 1; smp_load_acquire(&lane->state) ==
		    SLUICE_DEVFILE_LANE_POSTED;
	     i++) {
		u64 now;

		cpu_relax();
		if (i % 64)
			continue;
		if (signal_pending(current))
			return false;
		cond_resched();
		now = ktime_get_ns();
		if (end && now >= end) {
			space->rested = min(2 * space->rested + 1, 63U);
			WRITE_ONCE(space->rest, space->rested);
			return false;
		}
		if (!end)
			end = now + NSEC_PER_USEC * READ_ONCE(poll_us);
	}
	space->rested = 0;
	*result = le64_to_cpu(READ_ONCE(lane->result));
	/* Somebody else may look there by now, and have been asked nothing. */
	if (le32_to_cpu(READ_ONCE(lane->answered)) != space->posted)
		*result = -EIO;
	return true;
}

/* Makes a request by the lane. Otherwise it is to be made by the queue. */
static bool operate_at_once(struct mirror *mirror, struct slot *slot,
			    s64 *result)
{
	struct devfile_request *request = slot->request;
	struct space *space = slot->space;
	bool done;

	if (!post(slot))
		return false;
	atomic_long_inc(&mirror->posted);
	done = look(space, result);
	if (!done) {
		atomic_long_inc(&mirror->adopted);
		request->operation = cpu_to_le32(SLUICE_DEVFILE_ADOPT);
		request->arguments[0] = cpu_to_le64(space->posted);
	} else if (*result == -(s64)SLUICE_DEVFILE_UNKNOWN_FILE) {
		done = false;
	}
	clear_bit_unlock(0, &space->posting);
	return done;
}

/* Makes a request for the caller, and waits. The slot is not the caller's any more. */
static s64 operate(struct mirror *mirror, struct slot *slot, bool blocks,
		   u64 life, bool at_once)
{
	u32 tag = tag_of(mirror, slot), count = slot->count;
	struct devfile_request *request = slot->request;
	unsigned long flags;
	bool submitted = false;
	s64 result;

	request->tag = cpu_to_le32(tag);
	request->count = cpu_to_le32(count);
	if (count) {
		memcpy(request->ranges, slot->ranges,
		       count * sizeof(*slot->ranges));
		result = kvm_hypercall4(SLUICE_DEVFILE_DECLARE, mirror->slot,
					tag, virt_to_phys(slot->ranges),
					count);
		if (result) {
			result = -EIO;
			goto unpin;
		}
	}
	if (!at_once || !operate_at_once(mirror, slot, &result)) {
		request->lane = cpu_to_le32(lane_page(mirror, slot));
		result = submit(mirror, slot, SLOT_WAITED, life);
		submitted = !result;
		if (submitted)
			result = await(mirror, slot, blocks, life);
	}
	if (count)
		kvm_hypercall2(SLUICE_DEVFILE_WITHDRAW, mirror->slot, tag);
unpin:
	if (count)
		unpin(slot);
	if (submitted) {
		/* What is not answered keeps its tag until it is, or the device is reset. */
		spin_lock_irqsave(&mirror->lock, flags);
		submitted = slot->state == SLOT_WAITED;
		if (submitted)
			slot->state = SLOT_ALONE;
		spin_unlock_irqrestore(&mirror->lock, flags);
	}
	if (!submitted)
		free_slot(mirror, slot);
	return result;
}

/* Address spaces. */

static void leave_space(struct mirror *mirror, struct space *space, u64 life)
{
	bool last;

	mutex_lock(&mirror->spaces_lock);
	last = !--space->users;
	if (last)
		list_del(&space->entry);
	mutex_unlock(&mirror->spaces_lock);
	if (!last)
		return;
	notice_with(mirror, SLUICE_DEVFILE_FORGET, 0, space->number, 0, life,
		    space->lane);
	mmdrop(space->mm);
	kfree(space);
}

static struct devfile_lane *take_lane(struct mirror *mirror)
{
	struct devfile_lane *lane = NULL;
	unsigned long flags;
	u32 number;

	spin_lock_irqsave(&mirror->lock, flags);
	number = find_first_zero_bit(mirror->lanes_used,
				     SLUICE_DEVFILE_MAX_SPACES);
	if (number < SLUICE_DEVFILE_MAX_SPACES) {
		__set_bit(number, mirror->lanes_used);
		lane = (void *)mirror->lanes + number * PAGE_SIZE;
		WRITE_ONCE(lane->state, SLUICE_DEVFILE_LANE_CLOSED);
	}
	spin_unlock_irqrestore(&mirror->lock, flags);
	return lane;
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
static struct space *space_of(struct open_file *file)
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

/* Files. */

/* One under a number that is free. */
static struct open_file *new_file(struct mirror *mirror,
				  struct address_space *mapping)
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
	spin_lock_irqsave(&mirror->lock, flags);
	open->life = mirror->life;
	open->number =
		find_first_zero_bit(mirror->files, SLUICE_DEVFILE_MAX_FILES);
	if (open->number < SLUICE_DEVFILE_MAX_FILES)
		__set_bit(open->number, mirror->files);
	spin_unlock_irqrestore(&mirror->lock, flags);
	if (open->number == SLUICE_DEVFILE_MAX_FILES) {
		kfree(open);
		return ERR_PTR(-EMFILE);
	}
	kref_get(&mirror->users);
	return open;
}

/* A program has it by this. It has a place, which the other side keeps; its memory is found when the life ends. */
static void add_open(struct open_file *open, struct file *file)
{
	struct mirror *mirror = open->mirror;

	stream_open(file_inode(file), file);
	file->f_mode |= FMODE_LSEEK;
	mutex_lock(&mirror->opens_lock);
	list_add(&open->entry, &mirror->opens);
	mutex_unlock(&mirror->opens_lock);
}

/* Nobody here uses it any more. */
static void end_file(struct open_file *open)
{
	struct mirror *mirror = open->mirror;
	unsigned long flags;

	notice(mirror, SLUICE_DEVFILE_RELEASE, 0, 0, open->number, open->life);
	while (!list_empty(&open->uses)) {
		struct use *use =
			list_first_entry(&open->uses, struct use, entry);

		list_del(&use->entry);
		leave_space(mirror, use->space, open->life);
		kfree(use);
	}
	/* A number that is lost is so until the device's next life. */
	spin_lock_irqsave(&mirror->lock, flags);
	if (mirror->life == open->life && !open->lost)
		__clear_bit(open->number, mirror->files);
	spin_unlock_irqrestore(&mirror->lock, flags);
	iput(open->of);
	kref_put(&open->users, file_free);
}

/* A request of a file for the caller; an error, or NULL for none of them. */
static struct slot *begin(struct open_file *file, u32 operation,
			  unsigned int flags)
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

/* Reads, writes or makes an ioctl, whose calls on the driver wait as the file does now. */
static s64 operate_on(struct open_file *open, struct slot *slot, u32 flags,
		      bool at_once)
{
	s64 result;

	/* What it is ready for now is another question. */
	WRITE_ONCE(open->ready, 0);
	result = operate(open->mirror, slot, true, open->life,
			 at_once && is_told(open, flags));

	tell(open, flags);
	return result;
}

/* What a program may be told: an error's number, or up to `most`. */
static s64 plausible(s64 result, s64 most)
{
	if (result < -MAX_ERRNO || result > most)
		return -EIO;
	return result;
}

/* Has the file told when it is ready for one of these events. */
static void arm(struct open_file *file, __poll_t events, u64 space)
{
	struct mirror *mirror = file->mirror;
	unsigned long flags;
	struct slot *slot;
	bool needed;

	spin_lock_irqsave(&mirror->lock, flags);
	needed = events & ~file->awaited;
	file->awaited |= events;
	spin_unlock_irqrestore(&mirror->lock, flags);
	if (!needed)
		return;
	if (wait_event_killable(
		    mirror->free,
		    (slot = take_slot(mirror, false)) ||
			    READ_ONCE(mirror->life) != file->life) ||
	    !slot)
		return;
	kref_get(&file->users);
	slot->file = file;
	slot->request->operation = cpu_to_le32(SLUICE_DEVFILE_AWAIT);
	slot->request->tag = cpu_to_le32(tag_of(mirror, slot));
	slot->request->space = cpu_to_le64(space);
	slot->request->file = cpu_to_le32(file->number);
	slot->request->arguments[0] = cpu_to_le64(mangle_poll(events));
	if (submit(mirror, slot, SLOT_AWAIT, file->life)) {
		free_slot(mirror, slot);
		wake_up_interruptible_all(&file->wait);
		kref_put(&file->users, file_free);
	}
}

/*
 * Who waits by epoll asks once, and then only when woken; if it wants to hear of
 * edges, not even then. It listens on, and so is told of what comes next. So is
 * who is told by signals.
 */
static void arm_listeners(struct open_file *file)
{
	__poll_t wanted = READ_ONCE(file->wanted);
	struct space *space;

	if (!wq_has_sleeper(&file->wait))
		wanted = 0;
	if (READ_ONCE(file->signalled))
		wanted |= EPOLLIN | EPOLLRDNORM;
	if (!wanted)
		return;
	space = space_of(file);
	if (space)
		arm(file, wanted, space->number);
}

static ssize_t move(struct file *file, char __user *buffer, size_t bytes,
		    u32 operation)
{
	struct open_file *open = file->private_data;
	u32 ways = operation == SLUICE_DEVFILE_READ ? SLUICE_DEVFILE_OUT :
						      SLUICE_DEVFILE_IN;
	struct slot *slot;
	s64 result;
	int error;

	bytes = min_t(size_t, bytes, MOST_BYTES);
	slot = begin(open, operation, file->f_flags);
	if (IS_ERR(slot))
		return PTR_ERR(slot);
	slot->request->arguments[0] = cpu_to_le64((unsigned long)buffer);
	slot->request->arguments[1] = cpu_to_le64(bytes);
	error = reach(slot, (unsigned long)buffer, bytes, ways);
	if (error) {
		unpin(slot);
		free_slot(open->mirror, slot);
		return error;
	}
	result = plausible(operate_on(open, slot, file->f_flags, true), bytes);
	if (result == -EAGAIN || READ_ONCE(open->signalled))
		arm_listeners(open);
	return result;
}

static ssize_t devfile_read(struct file *file, char __user *buffer,
			    size_t bytes, loff_t *offset)
{
	return move(file, buffer, bytes, SLUICE_DEVFILE_READ);
}

static ssize_t devfile_write(struct file *file, const char __user *buffer,
			     size_t bytes, loff_t *offset)
{
	return move(file, (char __user *)buffer, bytes, SLUICE_DEVFILE_WRITE);
}

/* A field of a structure of the caller's, of four or eight bytes. */
static int get_field(unsigned long structure, u16 field, u16 bytes, u64 *value)
{
	*value = 0;
	return copy_from_user(value, (void __user *)(structure + field),
			      bytes) ?
		       -EFAULT :
		       0;
}

/* Adds what a structure leads to. Nothing there is believed: it only says what the driver may reach. */
static int follow(struct open_file *open, struct slot *slot,
		  const struct lead *lead, unsigned long structure)
{
	u64 address = structure + lead->follows, count = 1, kind;
	u64 size = lead->size ?: open->frame;
	const struct lead *inner;
	int error = 0;
	u64 i;

	if (lead->kind != NOTHING) {
		error = get_field(structure, lead->kind, 4, &kind);
		if (error || kind >= 32 || !(lead->kinds & BIT(kind)))
			return error;
	}
	if (lead->count != NOTHING)
		error = get_field(structure, lead->count, lead->count_bytes,
				  &count);
	if (!error && lead->pointer != NOTHING)
		error = get_field(structure, lead->pointer, 8, &address);
	if (error || !count || !size)
		return error;
	if (count > SLUICE_DEVFILE_MAX_BYTES / size)
		return -E2BIG;
	error = reach(slot, address, count * size, lead->ways);
	for (inner = lead->elements; inner && inner->number; inner++)
		for (i = 0; i < count && !error; i++)
			error = follow(open, slot, inner, address + i * size);
	return error;
}

static const struct lead *lead_of(struct mirror *mirror, unsigned int number)
{
	const struct lead *lead = mirror->leads;

	while (lead && lead->number && lead->number != number)
		lead++;
	return lead && lead->number ? lead : NULL;
}

/*
 * The number says where the argument leads. What is written is read before, so
 * that bytes which the driver leaves alone stay. An argument that leads nowhere
 * may be a number: the driver will say. So it does of what cannot be declared.
 */
static __always_inline s64 ask(struct file *file, const struct lead *lead,
			       unsigned int number, unsigned long argument,
			       u64 bits)
{
	struct open_file *open = file->private_data;
	bool makes_file = bits >> SLUICE_DEVFILE_IOCTL_DESCRIPTOR;
	struct slot *slot;
	u32 ways = 0;

	slot = begin(open, SLUICE_DEVFILE_IOCTL, file->f_flags);
	if (IS_ERR(slot))
		return PTR_ERR(slot);
	slot->request->arguments[0] = cpu_to_le64(number);
	slot->request->arguments[1] = cpu_to_le64(argument);
	slot->request->arguments[2] = cpu_to_le64(bits);
	if (_IOC_DIR(number) & _IOC_WRITE)
		ways |= SLUICE_DEVFILE_IN;
	/* Drivers write some structures back that they are said to read. */
	if (_IOC_DIR(number) & _IOC_READ || lead)
		ways |= SLUICE_DEVFILE_IN | SLUICE_DEVFILE_OUT;
	if (ways)
		reach(slot, argument, _IOC_SIZE(number), ways);
	if (lead && (lead->pointer != NOTHING || lead->follows != NOTHING))
		follow(open, slot, lead, argument);
	/* The other side's daemon has to know of a new file, which a lane passes by. */
	return plausible(operate_on(open, slot, file->f_flags, !makes_file),
			 INT_MAX);
}

/* Descriptors that ioctls answer with. */

/* A file for one, and its descriptor, before either is anybody's. */
struct made {
	struct file *file;
	struct open_file *open;
	int descriptor;
	u64 bits; /* that say so in the request */
};

/* Nobody gets it. The other side may have it all the same. */
static void give_up(struct made *made, bool lost)
{
	made->open->lost = lost;
	put_unused_fd(made->descriptor);
	fput(made->file);
}

static int prepare(struct file *from, const struct lead *lead,
		   unsigned long structure, struct made *made)
{
	struct open_file *open = from->private_data;
	u64 flags;
	int error;

	error = get_field(structure, lead->flags, 4, &flags);
	if (error)
		return error;
	made->open = new_file(open->mirror, from->f_mapping);
	if (IS_ERR(made->open))
		return PTR_ERR(made->open);
	made->descriptor = get_unused_fd_flags(flags & O_CLOEXEC);
	error = made->descriptor;
	if (error < 0)
		goto end;
	made->file = anon_inode_getfile("[sluice-devfile]", &devfile_operations,
					made->open, flags & O_ACCMODE);
	error = PTR_ERR_OR_ZERO(made->file);
	if (error)
		goto put;
	/* Its memory is found by this, and no other file's is. */
	made->open->of = from->f_mapping->host;
	ihold(made->open->of);
	made->file->f_mapping = from->f_mapping;
	add_open(made->open, made->file);
	made->bits = (u64)lead->descriptor << SLUICE_DEVFILE_IOCTL_DESCRIPTOR |
		     (u64)made->open->number << SLUICE_DEVFILE_IOCTL_FILE;
	if (made->open->life == open->life)
		return 0;
	give_up(made, false);
	return -ENODEV;

put:
	put_unused_fd(made->descriptor);
end:
	end_file(made->open);
	return error;
}

/* An ioctl that answers with a descriptor. */
static noinline long make_descriptor(struct file *file, const struct lead *lead,
				     unsigned int number,
				     unsigned long argument, u64 bits)
{
	s32 __user *place = (void __user *)(argument + lead->descriptor - 1);
	struct made made;
	s64 result;

	result = prepare(file, lead, argument, &made);
	if (result)
		return result;
	result = ask(file, lead, number, argument, bits | made.bits);
	if (!result && put_user(made.descriptor, place))
		result = -EFAULT;
	if (!result)
		fd_install(made.descriptor, made.file);
	else
		give_up(&made, result == -EIO || result == -EINTR ||
				       result == -ERESTARTSYS);
	return result;
}

static long make_ioctl(struct file *file, unsigned int number,
		       unsigned long argument, u64 bits)
{
	struct open_file *open = file->private_data;
	const struct lead *lead = lead_of(open->mirror, number);
	s64 result;

	if (lead && lead->refused) {
		u64 choice;

		if (!get_field(argument, lead->choice, 4, &choice) &&
		    choice < 32 && lead->refused & BIT(choice))
			return -EINVAL;
	}
	if (lead && lead->descriptor)
		return make_descriptor(file, lead, number, argument, bits);
	result = ask(file, lead, number, argument, bits);
	if (lead && lead->not_offered && !result) {
		u64 offer;

		if (!get_field(argument, lead->offer, 4, &offer))
			result = put_user((u32)offer & ~lead->not_offered,
					  (u32 __user *)(argument +
							 lead->offer));
	}
	if (lead && lead->frame_bits != NOTHING && !result) {
		u64 frame;

		if (!get_field(argument, lead->frame_bits, 4, &frame))
			open->frame = frame / 8;
	}
	if (result == -EAGAIN)
		arm_listeners(open);
	return result;
}

static long devfile_ioctl(struct file *file, unsigned int number,
			  unsigned long argument)
{
	return make_ioctl(file, number, argument, 0);
}

#ifdef CONFIG_COMPAT
/* Structures that lead on are others here, of which no class has a table. */
static long devfile_narrow_ioctl(struct file *file, unsigned int number,
				 unsigned long argument)
{
	return make_ioctl(file, number, argument, SLUICE_DEVFILE_IOCTL_NARROW);
}
#endif

/* The other side knows where the file is, whoever moved it there. */
static loff_t devfile_seek(struct file *file, loff_t offset, int whence)
{
	struct open_file *open = file->private_data;
	struct slot *slot;
	s64 result;

	slot = begin(open, SLUICE_DEVFILE_SEEK, file->f_flags);
	if (IS_ERR(slot))
		return PTR_ERR(slot);
	slot->request->arguments[0] = cpu_to_le64(offset);
	slot->request->arguments[1] = cpu_to_le64(whence);
	result = operate(open->mirror, slot, false, open->life, true);
	return plausible(result, S64_MAX);
}

static int devfile_signal(int descriptor, struct file *file, int on)
{
	struct open_file *open = file->private_data;
	int result = fasync_helper(descriptor, file, on, &open->signalled);

	if (on && result >= 0)
		arm_listeners(open);
	return result;
}

static __poll_t devfile_poll(struct file *file, poll_table *table)
{
	struct open_file *open = file->private_data;
	__poll_t events = poll_requested_events(table) &
			  (EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDNORM |
			   EPOLLWRNORM | EPOLLRDBAND | EPOLLWRBAND);
	struct slot *slot;
	__poll_t ready;
	s64 result;

	poll_wait(file, &open->wait, table);
	if (wq_has_sleeper(&open->wait))
		WRITE_ONCE(open->wanted, READ_ONCE(open->wanted) | events);
	/* Whoever was woken by an answer need not ask for it again. */
	ready = demangle_poll(xchg(&open->ready, 0)) &
		(events | EPOLLERR | EPOLLHUP);
	if (ready && READ_ONCE(open->mirror->life) == open->life)
		return ready;
	slot = begin(open, SLUICE_DEVFILE_POLL, file->f_flags);
	if (IS_ERR(slot))
		return slot == ERR_PTR(-ERESTARTSYS) ? 0 : EPOLLERR | EPOLLHUP;
	slot->request->arguments[0] = cpu_to_le64(mangle_poll(events));
	result = operate(open->mirror, slot, false, open->life, true);
	if (result == -ERESTARTSYS || result == -EINTR)
		return 0;
	if (plausible(result, U16_MAX) < 0)
		return EPOLLERR | EPOLLHUP;
	if (!result)
		arm_listeners(open);
	return demangle_poll(result);
}

/* Maps. */

static void region_free(struct kref *users)
{
	struct region *region = container_of(users, struct region, users);
	struct mirror *mirror = region->file->mirror;
	struct slot *slot = NULL;

	/* Pages that cannot be given back now are until the device's next life. */
	wait_event_timeout(mirror->free,
			   (slot = take_slot(mirror, false)) ||
				   READ_ONCE(mirror->life) !=
					   region->file->life,
			   msecs_to_jiffies(patience_ms));
	if (slot) {
		slot->first = region->first;
		slot->freed = region->pages;
		slot->request->operation = cpu_to_le32(SLUICE_DEVFILE_UNMAP);
		slot->request->tag = cpu_to_le32(tag_of(mirror, slot));
		slot->request->space = cpu_to_le64(region->space);
		slot->request->file = cpu_to_le32(region->file->number);
		slot->request->arguments[0] = cpu_to_le64(region->first);
		if (submit(mirror, slot, SLOT_ALONE, region->file->life))
			free_slot(mirror, slot);
	}
	kfree(region);
}

static void region_open(struct vm_area_struct *vma)
{
	struct region *region = vma->vm_private_data;

	kref_get(&region->users);
}

static void region_close(struct vm_area_struct *vma)
{
	struct region *region = vma->vm_private_data;

	kref_put(&region->users, region_free);
}

static vm_fault_t region_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct region *region = vma->vm_private_data;
	struct mirror *mirror = region->file->mirror;
	unsigned long address = vmf->address & PAGE_MASK;
	u64 page = vmf->pgoff - region->start;
	vm_fault_t result = VM_FAULT_SIGBUS;
	u32 i;

	down_read(&mirror->maps_lock);
	for (i = 0; i < PAGES_PER_FAULT; i++) {
		vm_fault_t inserted;

		if (page + i >= region->pages || address >= vma->vm_end ||
		    READ_ONCE(mirror->life) != region->file->life)
			break;
		inserted = vmf_insert_pfn(
			vma, address,
			PHYS_PFN(mirror->maps.addr) + region->first + page + i);
		if (!i)
			result = inserted;
		if (inserted != VM_FAULT_NOPAGE)
			break;
		address += PAGE_SIZE;
	}
	up_read(&mirror->maps_lock);
	return result;
}

static const struct vm_operations_struct region_operations = {
	.open = region_open,
	.close = region_close,
	.fault = region_fault,
};

/* Takes pages of the device's memory of maps. */
static bool take_pages(struct mirror *mirror, struct region *region)
{
	unsigned long first, flags;

	spin_lock_irqsave(&mirror->lock, flags);
	first = bitmap_find_next_zero_area(mirror->maps_used, MAP_PAGES, 0,
					   region->pages, 0);
	if (first < MAP_PAGES)
		bitmap_set(mirror->maps_used, first, region->pages);
	spin_unlock_irqrestore(&mirror->lock, flags);
	region->first = first;
	return first < MAP_PAGES;
}

static void give_pages(struct mirror *mirror, struct region *region)
{
	unsigned long flags;

	spin_lock_irqsave(&mirror->lock, flags);
	if (mirror->life == region->file->life)
		bitmap_clear(mirror->maps_used, region->first, region->pages);
	spin_unlock_irqrestore(&mirror->lock, flags);
}

/* The other domain maps the same, and shows it in these pages. */
static int devfile_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct open_file *open = file->private_data;
	struct mirror *mirror = open->mirror;
	struct region *region;
	struct slot *slot;
	u32 rights = 0;
	s64 result;

	if (!mirror->maps.len)
		return -ENODEV;
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma_pages(vma) > MAP_PAGES)
		return -ENOMEM;
	if (vma->vm_flags & VM_READ)
		rights |= SLUICE_DEVFILE_MAPS_READ;
	if (vma->vm_flags & VM_WRITE)
		rights |= SLUICE_DEVFILE_MAPS_WRITE;
	region = kzalloc(sizeof(*region), GFP_KERNEL);
	if (!region)
		return -ENOMEM;
	kref_init(&region->users);
	region->file = open;
	region->start = vma->vm_pgoff;
	region->pages = vma_pages(vma);
	slot = begin(open, SLUICE_DEVFILE_MAP, file->f_flags);
	if (IS_ERR(slot)) {
		kfree(region);
		return PTR_ERR(slot);
	}
	if (!take_pages(mirror, region)) {
		free_slot(mirror, slot);
		kfree(region);
		return -ENOMEM;
	}
	region->space = le64_to_cpu(slot->request->space);
	slot->request->arguments[0] =
		cpu_to_le64((u64)vma->vm_pgoff << PAGE_SHIFT);
	slot->request->arguments[1] =
		cpu_to_le64((u64)region->pages << PAGE_SHIFT);
	slot->request->arguments[2] =
		cpu_to_le64(region->first | (u64)rights << 32);
	result = plausible(operate(mirror, slot, false, open->life, false), 0);
	if (result) {
		/* Without an answer it may be mapped yet: the pages are not used again. */
		if (result != -EIO && result != -EINTR &&
		    result != -ERESTARTSYS)
			give_pages(mirror, region);
		kfree(region);
		return result == -ERESTARTSYS ? -EINTR : result;
	}
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, VM_PFNMAP | VM_DONTDUMP | VM_DONTEXPAND);
	if (!(vma->vm_flags & VM_WRITE))
		vm_flags_clear(vma, VM_MAYWRITE);
#else
	vma->vm_flags |= VM_PFNMAP | VM_DONTDUMP | VM_DONTEXPAND;
	if (!(vma->vm_flags & VM_WRITE))
		vma->vm_flags &= ~VM_MAYWRITE;
#endif
	vma->vm_ops = &region_operations;
	vma->vm_private_data = region;
	return 0;
}

/* With mirrors_lock held. */
static struct mirror *mirror_of(const struct inode *inode)
{
	unsigned int i;

	if (inode->i_cdev == &devfile_cdev)
		return mirrors[iminor(inode)];
	for (i = 0; i < MINORS; i++)
		if (mirrors[i] && mirrors[i]->input &&
		    input_face_is(mirrors[i]->input, inode))
			return mirrors[i];
	return NULL;
}

static int devfile_open(struct inode *inode, struct file *file)
{
	struct open_file *open = ERR_PTR(-ENODEV);
	struct mirror *mirror;
	struct slot *slot;
	int error;

	mutex_lock(&mirrors_lock);
	mirror = mirror_of(inode);
	if (mirror)
		open = new_file(mirror, file->f_mapping);
	mutex_unlock(&mirrors_lock);
	if (IS_ERR(open))
		return PTR_ERR(open);
	slot = begin(open, SLUICE_DEVFILE_OPEN, file->f_flags);
	error = PTR_ERR_OR_ZERO(slot);
	if (!error)
		error = plausible(operate(mirror, slot, true, open->life,
					  false),
				  0);
	if (error) {
		/* It may succeed yet. */
		end_file(open);
		return error;
	}
	file->private_data = open;
	add_open(open, file);
	return 0;
}

static int devfile_release(struct inode *inode, struct file *file)
{
	struct open_file *open = file->private_data;
	struct mirror *mirror = open->mirror;
	unsigned long flags;
	unsigned int i;

	mutex_lock(&mirror->opens_lock);
	list_del(&open->entry);
	mutex_unlock(&mirror->opens_lock);
	for (i = 0; i < SLUICE_DEVFILE_MAX_OPERATIONS; i++) {
		struct slot *slot = &mirror->slots[i];
		bool ours;

		spin_lock_irqsave(&mirror->lock, flags);
		ours = slot->state == SLOT_AWAIT && slot->file == open;
		spin_unlock_irqrestore(&mirror->lock, flags);
		if (ours)
			notice(mirror, SLUICE_DEVFILE_CANCEL, i, 0, 0,
			       open->life);
	}
	end_file(open);
	return 0;
}

static const struct file_operations devfile_operations = {
	.owner = THIS_MODULE,
	.open = devfile_open,
	.release = devfile_release,
	.read = devfile_read,
	.write = devfile_write,
	.unlocked_ioctl = devfile_ioctl,
#ifdef CONFIG_COMPAT
	.compat_ioctl = devfile_narrow_ioctl,
#endif
	.llseek = devfile_seek,
	.fasync = devfile_signal,
	.poll = devfile_poll,
	.mmap = devfile_mmap,
};

/* The node. */

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static char *devfile_devnode(const struct device *device, umode_t *mode)
#else
static char *devfile_devnode(struct device *device, umode_t *mode)
#endif
{
	struct mirror *mirror = dev_get_drvdata(device);

	if (mode && mirror)
		*mode = mirror->mode;
	return NULL;
}

/* A path below /dev: letters, digits, '-', '_', ':', '.' and '/', and no parts that begin with a dot. */
static bool node_is_plain(const char *node)
{
	size_t len = strnlen(node, SLUICE_DEVFILE_NODE_SIZE);
	size_t i;

	if (len == 0 || len == SLUICE_DEVFILE_NODE_SIZE || node[len - 1] == '/')
		return false;
	for (i = 0; i < len; i++) {
		char c = node[i];
		bool first = i == 0 || node[i - 1] == '/';

		if (first && (c == '.' || c == '/'))
			return false;
		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
		    !(c >= '0' && c <= '9') && !strchr("-_:./", c))
			return false;
	}
	return true;
}

/* What the back end says of the device, in a lane that nobody uses yet; NULL: nothing. To be freed. */
static char *description(struct mirror *mirror, size_t length)
{
	struct devfile_lane *lane = mirror->lanes;
	char *text;

	text = length ? kmemdup(lane, min_t(size_t, length, PAGE_SIZE),
				GFP_KERNEL) :
			NULL;
	memset(lane, 0, PAGE_SIZE);
	WRITE_ONCE(lane->state, SLUICE_DEVFILE_LANE_CLOSED);
	return text;
}

/* Shows an input device where programs look for one. Returns whether it is there. */
static bool publish_input(struct mirror *mirror, const char *text,
			  size_t length)
{
	struct input_face *face;

	face = input_face_show(&mirror->vdev->dev, mirror->node, text, length,
			       &devfile_operations);
	if (IS_ERR(face))
		return false;
	if (strcmp(input_face_node(face), mirror->node))
		dev_info(&mirror->vdev->dev, "%s is %s here\n", mirror->node,
			 input_face_node(face));
	mutex_lock(&mirrors_lock);
	mirror->input = face;
	mutex_unlock(&mirrors_lock);
	return true;
}

/* Waits until a back end answers, and makes the node. */
static void publish(struct work_struct *work)
{
	struct mirror *mirror = container_of(work, struct mirror, publish);
	struct devfile_config config;
	u64 life = READ_ONCE(mirror->life);
	struct device *device;
	struct slot *slot;
	size_t length;
	char *text;
	unsigned int i;

	slot = take_slot(mirror, false);
	if (!slot)
		return;
	slot->request->operation = cpu_to_le32(SLUICE_DEVFILE_HELLO);
	slot->request->tag = cpu_to_le32(tag_of(mirror, slot));
	slot->request->lane =
		cpu_to_le32(mirror->lane_addresses[0] >> PAGE_SHIFT);
	if (submit(mirror, slot, SLOT_WAITED, life)) {
		free_slot(mirror, slot);
		return;
	}
	/* Who serves it may be started in an hour. */
	wait_for_completion(&slot->done);
	if (slot->result < 0) {
		free_slot(mirror, slot);
		return;
	}
	length = min_t(u64, slot->result, PAGE_SIZE);
	free_slot(mirror, slot);
	text = description(mirror, length);

	virtio_cread_bytes(mirror->vdev, 0, &config, sizeof(config));
	if (le32_to_cpu(config.version) != SLUICE_DEVFILE_VERSION ||
	    !node_is_plain(config.node)) {
		dev_err(&mirror->vdev->dev,
			"its configuration is not one that this driver knows\n");
		kfree(text);
		return;
	}
	memcpy(mirror->node, config.node, sizeof(mirror->node));
	mirror->mode = le32_to_cpu(config.mode) & 0666;
	config.class[sizeof(config.class) - 1] = 0;
	mirror->leads = NULL;
	for (i = 0; i < ARRAY_SIZE(classes); i++)
		if (!strcmp(config.class, classes[i].class))
			mirror->leads = classes[i].leads;
	if (text && !strcmp(config.class, "input") &&
	    publish_input(mirror, text, length)) {
		kfree(text);
		return;
	}
	kfree(text);
	device = device_create(devfile_class, &mirror->vdev->dev,
			       mirror->number, mirror, "%s", mirror->node);
	if (IS_ERR(device)) {
		dev_err(&mirror->vdev->dev, "no node %s: %ld\n", mirror->node,
			PTR_ERR(device));
		return;
	}
	mirror->device = device;
}

static void unpublish(struct mirror *mirror)
{
	struct input_face *face;

	flush_work(&mirror->publish);
	mutex_lock(&mirrors_lock);
	face = mirror->input;
	mirror->input = NULL;
	mutex_unlock(&mirrors_lock);
	if (face)
		input_face_hide(face);
	if (mirror->device)
		device_destroy(devfile_class, mirror->number);
	mirror->device = NULL;
}

/* The device. */

/* The back end reaches what is mapped for it only. Otherwise addresses are physical. */
static bool by_grants(struct mirror *mirror)
{
	return virtio_has_feature(mirror->vdev, VIRTIO_F_ACCESS_PLATFORM);
}

/* Lets the back end reach the lanes. One that it cannot reach is not used. */
static void show_lanes(struct mirror *mirror)
{
	struct device *dma = mirror->vdev->dev.parent;
	u32 i;

	for (i = 0; i < SLUICE_DEVFILE_MAX_SPACES; i++) {
		void *lane = (void *)mirror->lanes + i * PAGE_SIZE;
		dma_addr_t address;

		WRITE_ONCE(((struct devfile_lane *)lane)->state,
			   SLUICE_DEVFILE_LANE_CLOSED);
		if (!by_grants(mirror)) {
			mirror->lane_addresses[i] = virt_to_phys(lane);
			continue;
		}
		address = dma_map_single(dma, lane, PAGE_SIZE,
					 DMA_BIDIRECTIONAL);
		if (!dma_mapping_error(dma, address))
			mirror->lane_addresses[i] = address;
	}
}

static void hide_lanes(struct mirror *mirror)
{
	struct device *dma = mirror->vdev->dev.parent;
	u32 i;

	for (i = 0; i < SLUICE_DEVFILE_MAX_SPACES; i++) {
		if (mirror->lane_addresses[i] && by_grants(mirror))
			dma_unmap_single(dma, mirror->lane_addresses[i],
					 PAGE_SIZE, DMA_BIDIRECTIONAL);
		mirror->lane_addresses[i] = 0;
	}
}

static int start(struct mirror *mirror)
{
	struct virtqueue *queue;

	queue = virtio_find_single_vq(mirror->vdev, queue_answered, "requests");
	if (IS_ERR(queue))
		return PTR_ERR(queue);
	show_lanes(mirror);
	spin_lock_irq(&mirror->lock);
	mirror->queue = queue;
	spin_unlock_irq(&mirror->lock);
	return 0;
}

/* No process has a page of the device's mapped any more, or maps one anew. */
static void forget_maps(struct mirror *mirror)
{
	struct open_file *file;

	/* Who has seen the life go on has inserted its pages when this is over. */
	down_write(&mirror->maps_lock);
	up_write(&mirror->maps_lock);
	mutex_lock(&mirror->opens_lock);
	list_for_each_entry(file, &mirror->opens, entry)
		unmap_mapping_range(file->mapping, 0, 0, 1);
	mutex_unlock(&mirror->opens_lock);
}

/* Ends a life: nothing of it is answered any more. */
static void stop(struct mirror *mirror)
{
	struct virtio_device *vdev = mirror->vdev;
	unsigned long flags;
	unsigned int i;

	spin_lock_irqsave(&mirror->lock, flags);
	mirror->queue = NULL;
	mirror->life++;
	bitmap_zero(mirror->files, SLUICE_DEVFILE_MAX_FILES);
	spin_unlock_irqrestore(&mirror->lock, flags);
	forget_maps(mirror);
	virtio_reset_device(vdev);
	vdev->config->del_vqs(vdev);
	hide_lanes(mirror);
	for (i = 0; i < SLOTS; i++) {
		struct slot *slot = &mirror->slots[i];
		struct open_file *file = NULL;

		spin_lock_irqsave(&mirror->lock, flags);
		if (slot->state >= SLOT_WAITED && slot->state != SLOT_ANSWERED)
			file = answered(mirror, slot, -EIO);
		spin_unlock_irqrestore(&mirror->lock, flags);
		if (file)
			kref_put(&file->users, file_free);
	}
	spin_lock_irqsave(&mirror->lock, flags);
	bitmap_andnot(mirror->lanes_used, mirror->lanes_used,
		      mirror->lanes_lost, SLUICE_DEVFILE_MAX_SPACES);
	bitmap_zero(mirror->lanes_lost, SLUICE_DEVFILE_MAX_SPACES);
	bitmap_zero(mirror->maps_used, MAP_PAGES);
	spin_unlock_irqrestore(&mirror->lock, flags);
	wake_up_all(&mirror->free);
}

static void restart(struct work_struct *work)
{
	struct mirror *mirror = container_of(work, struct mirror, restart);
	struct virtio_device *vdev = mirror->vdev;

	if (!(vdev->config->get_status(vdev) & VIRTIO_CONFIG_S_NEEDS_RESET))
		return;
	virtio_device_freeze(vdev);
	unpublish(mirror);
	if (virtio_device_restore(vdev))
		dev_err(&vdev->dev, "it cannot be started again\n");
}

static int devfile_freeze(struct virtio_device *vdev)
{
	stop(vdev->priv);
	return 0;
}

static int devfile_restore(struct virtio_device *vdev)
{
	struct mirror *mirror = vdev->priv;
	int error = start(mirror);

	if (error)
		return error;
	virtio_device_ready(vdev);
	schedule_work(&mirror->publish);
	return 0;
}

static void devfile_changed(struct virtio_device *vdev)
{
	struct mirror *mirror = vdev->priv;

	schedule_work(&mirror->restart);
}

static int claim_minor(struct mirror *mirror)
{
	unsigned int minor;
	int error = -ENOSPC;

	mutex_lock(&mirrors_lock);
	for (minor = 0; minor < MINORS && error; minor++)
		if (!mirrors[minor]) {
			mirrors[minor] = mirror;
			mirror->minor = minor;
			mirror->number = first_number + minor;
			error = 0;
		}
	mutex_unlock(&mirrors_lock);
	return error;
}

static void release_minor(struct mirror *mirror)
{
	mutex_lock(&mirrors_lock);
	mirrors[mirror->minor] = NULL;
	mutex_unlock(&mirrors_lock);
}

static int devfile_probe(struct virtio_device *vdev)
{
	struct mirror *mirror;
	unsigned int i;
	int error = -ENOMEM;

	if (!vdev->dev.parent || !dev_is_pci(vdev->dev.parent))
		return -ENODEV;
	mirror = kzalloc(sizeof(*mirror), GFP_KERNEL);
	if (!mirror)
		return -ENOMEM;
	kref_init(&mirror->users);
	spin_lock_init(&mirror->lock);
	init_waitqueue_head(&mirror->free);
	mutex_init(&mirror->spaces_lock);
	INIT_LIST_HEAD(&mirror->spaces);
	mutex_init(&mirror->opens_lock);
	INIT_LIST_HEAD(&mirror->opens);
	init_rwsem(&mirror->maps_lock);
	INIT_WORK(&mirror->publish, publish);
	INIT_WORK(&mirror->restart, restart);
	mirror->vdev = vdev;
	mirror->slot = PCI_SLOT(to_pci_dev(vdev->dev.parent)->devfn);
	mirror->slots = kvcalloc(SLOTS, sizeof(*mirror->slots), GFP_KERNEL);
	/* Pages of their own: they are what the back end reaches. */
	mirror->memory = alloc_pages_exact(SLOTS * SLOT_SIZE,
					   GFP_KERNEL | __GFP_ZERO);
	mirror->ranges = alloc_pages_exact(SLOTS * RANGES_SIZE,
					   GFP_KERNEL | __GFP_ZERO);
	mirror->lanes = alloc_pages_exact(LANES_SIZE, GFP_KERNEL | __GFP_ZERO);
	mirror->maps_used = bitmap_zalloc(MAP_PAGES, GFP_KERNEL);
	if (!mirror->slots || !mirror->memory || !mirror->ranges ||
	    !mirror->lanes || !mirror->maps_used)
		goto free;
	for (i = 0; i < SLOTS; i++) {
		struct slot *slot = &mirror->slots[i];

		slot->request = mirror->memory + i * SLOT_SIZE;
		slot->ranges = mirror->ranges + i * RANGES_SIZE;
		slot->answer = (void *)(slot->request + 1);
		init_completion(&slot->done);
	}
	vdev->priv = mirror;
	if (!virtio_get_shm_region(vdev, &mirror->maps,
				   SLUICE_DEVFILE_MAPS_REGION) ||
	    mirror->maps.len < SLUICE_DEVFILE_MAPS_SIZE)
		mirror->maps.len = 0;
	/* Pages that are mapped for programs get the kind of memory that this has. */
	if (mirror->maps.len)
		mirror->maps_memory = memremap(mirror->maps.addr,
					       SLUICE_DEVFILE_MAPS_SIZE,
					       MEMREMAP_WB);
	if (!mirror->maps_memory)
		mirror->maps.len = 0;
	error = claim_minor(mirror);
	if (error)
		goto free;
	error = start(mirror);
	if (error)
		goto release;
	virtio_device_ready(vdev);
	schedule_work(&mirror->publish);
	return 0;

release:
	release_minor(mirror);
free:
	if (mirror->maps_memory)
		memunmap(mirror->maps_memory);
	if (mirror->memory)
		free_pages_exact(mirror->memory, SLOTS * SLOT_SIZE);
	if (mirror->ranges)
		free_pages_exact(mirror->ranges, SLOTS * RANGES_SIZE);
	if (mirror->lanes)
		free_pages_exact(mirror->lanes, LANES_SIZE);
	kvfree(mirror->slots);
	bitmap_free(mirror->maps_used);
	kfree(mirror);
	return error;
}

static void devfile_remove(struct virtio_device *vdev)
{
	struct mirror *mirror = vdev->priv;

	cancel_work_sync(&mirror->restart);
	stop(mirror);
	unpublish(mirror);
	release_minor(mirror);
	if (mirror->maps_memory)
		memunmap(mirror->maps_memory);
	kref_put(&mirror->users, mirror_free);
}

static const struct virtio_device_id devfile_ids[] = {
	{ SLUICE_DEVFILE_KIND, VIRTIO_DEV_ANY_ID },
	{},
};
MODULE_DEVICE_TABLE(virtio, devfile_ids);

static ssize_t posted_show(struct device *device,
			   struct device_attribute *attribute, char *text)
{
	struct mirror *mirror = dev_to_virtio(device)->priv;

	return sysfs_emit(text, "%ld\n", atomic_long_read(&mirror->posted));
}

static ssize_t adopted_show(struct device *device,
			    struct device_attribute *attribute, char *text)
{
	struct mirror *mirror = dev_to_virtio(device)->priv;

	return sysfs_emit(text, "%ld\n", atomic_long_read(&mirror->adopted));
}

static DEVICE_ATTR_RO(posted);
static DEVICE_ATTR_RO(adopted);

static struct attribute *devfile_attrs[] = {
	&dev_attr_posted.attr,
	&dev_attr_adopted.attr,
	NULL,
};
ATTRIBUTE_GROUPS(devfile);

static struct virtio_driver devfile_driver = {
	.driver.name = KBUILD_MODNAME,
	.driver.dev_groups = devfile_groups,
	.driver.owner = THIS_MODULE,
	.id_table = devfile_ids,
	.probe = devfile_probe,
	.remove = devfile_remove,
	.config_changed = devfile_changed,
	.freeze = devfile_freeze,
	.restore = devfile_restore,
};

static int __init devfile_init(void)
{
	int error;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	devfile_class = class_create("sluice-devfile");
#else
	devfile_class = class_create(THIS_MODULE, "sluice-devfile");
#endif
	if (IS_ERR(devfile_class))
		return PTR_ERR(devfile_class);
	devfile_class->devnode = devfile_devnode;
	error = alloc_chrdev_region(&first_number, 0, MINORS, "sluice-devfile");
	if (error)
		goto destroy;
	cdev_init(&devfile_cdev, &devfile_operations);
	devfile_cdev.owner = THIS_MODULE;
	error = cdev_add(&devfile_cdev, first_number, MINORS);
	if (error)
		goto unregister;
	error = register_virtio_driver(&devfile_driver);
	if (error)
		goto delete;
	return 0;

delete:
	cdev_del(&devfile_cdev);
unregister:
	unregister_chrdev_region(first_number, MINORS);
destroy:
	class_destroy(devfile_class);
	return error;
}

static void __exit devfile_exit(void)
{
	unregister_virtio_driver(&devfile_driver);
	cdev_del(&devfile_cdev);
	unregister_chrdev_region(first_number, MINORS);
	class_destroy(devfile_class);
}

module_init(devfile_init);
module_exit(devfile_exit);

MODULE_DESCRIPTION("Device files of another domain of the Sluice hypervisor");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
