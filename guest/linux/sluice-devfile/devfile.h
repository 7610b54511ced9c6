/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Device files of another domain, mirrored in this one: what the parts of the
 * front end know of each other. Each file uses those above it only:
 *
 *   mirror.c      what is kept of a device, and of an open file
 *   lane.c        pages in which requests are posted
 *   request.c     requests in the queue, and what they may reach
 *   taken.c       files that a request takes
 *   operation.c   a request for the caller, by lane or queue
 *   space.c       address spaces of programs
 *   file.c        open files
 *   poll.c        who is told when a file is ready
 *   lead.c        what arguments of ioctls lead to (tables.h, narrow.h)
 *   fence.c       fences that properties of a screen name
 *   descriptor.c  files for descriptors that ioctls answer with
 *   ioctl.c, maps.c, node.c (with input.c)
 *   operations.c  all that a program can do with a file (with operate_on.h)
 *   device.c      the virtio device, from its probe to its end
 *
 * Locks: mirrors_lock (node.c); mirror->spaces_lock; file->lock (each alone);
 * mirror->opens_lock; mirror->maps_lock (page faults against the end of a life);
 * mirror->lock (innermost, interrupts off); open_files_lock (mirror.c; alone).
 */
#ifndef _SLUICE_DEVFILE_DEVFILE_H
#define _SLUICE_DEVFILE_DEVFILE_H

#include <linux/bitmap.h>
#include <linux/completion.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "sluice.h"

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

struct devfile_range {
	__le64 address;
	__le32 bytes;
	__le32 ways;
};

/* One that the operation takes. */
struct devfile_descriptor {
	__le64 address;
	__le16 file;
	__le16 number;
	__le32 device;
};

struct devfile_request {
	struct_group(header,
		__le32 operation;
		__le32 tag;
		__le64 space;
		__le32 file;
		__le32 flags;
		__le64 arguments[3];
		__le32 counts; /* of ranges; from bit 16 on, of descriptors */
		__le32 lane;
	);
	struct devfile_range ranges[SLUICE_DEVFILE_MAX_RANGES];
	struct devfile_descriptor descriptors[SLUICE_DEVFILE_MAX_DESCRIPTORS];
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
static_assert(sizeof(struct devfile_descriptor) ==
	      SLUICE_DEVFILE_DESCRIPTOR_SIZE);
static_assert(offsetof(struct devfile_request, descriptors) ==
	      SLUICE_DEVFILE_REQUEST_DESCRIPTORS);
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
	bool frees_file; /* and so is this number of a file */
	u32 freed_file;
	struct space *space; /* the caller's */
	/* What is declared, where the back end cannot alter it. */
	struct devfile_range *ranges;
	unsigned int count;
	unsigned int pages_of[SLUICE_DEVFILE_MAX_RANGES];
	unsigned int page_count;
	struct page *pages[MOST_PAGES];
	/* Files that it takes. */
	u32 taken_count;
	struct file *taken[SLUICE_DEVFILE_MAX_DESCRIPTORS];
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
	struct hlist_node hashed; /* by `file` */
	struct file *file;
	struct address_space *mapping;
	struct mirror *mirror;
	u32 number;
	u32 device; /* the life's number */
	u32 in_fence, out_fence; /* properties of a screen, by their numbers; 0: not known */
	u32 frame, sample, channels; /* bytes of the first two, for a sound card */
	u32 told; /* flags that the other side has been told of */
	u64 life;
	struct mutex lock; /* uses */
	struct list_head uses;
	wait_queue_head_t wait;
	__poll_t awaited; /* mirror->lock */
	u32 ready; /* what it was told of, and nobody has heard yet */
	__poll_t wanted; /* what was asked for last, by who may still listen */
	struct fasync_struct *signalled; /* who gets SIGIO */
	struct pid *opener; /* held: the process that it was made for */
	struct inode *of; /* held: that of the file it was made from, by an ioctl */
	bool lost; /* the other side may have it, or make it yet */
};

/* A device. */
struct mirror {
	struct kref users; /* the driver, and open files */
	unsigned int minor;
	u32 slot; /* on the bus */
	dev_t number;
	const struct file_operations *operations; /* of its files */
	char node[SLUICE_DEVFILE_NODE_SIZE];
	umode_t mode;
	/* Of its class, for programs of 64 and of 32 bits; NULL: none are known. */
	const struct lead *leads, *narrow_leads;
	struct device *device; /* NULL: there is no node of our own class */
	struct devfile_face *face; /* NULL: there is none of another class */
	struct work_struct publish, restart;

	spinlock_t lock;
	struct virtio_device *vdev;
	struct virtqueue *queue; /* NULL: no request can be made */
	u64 life;
	u32 identity; /* a number that no life of any device had before */
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

/* mirror.c */

/* A device, of which nothing is known yet; NULL: no memory. */
struct mirror *mirror_new(void);
/* For kref_put: nobody uses it any more. */
void mirror_free(struct kref *users);
/* The same of an open file. */
void file_free(struct kref *users);
/* A program has an open file by this. */
void remember_open(struct open_file *open, struct file *file);
/* It is being closed. */
void forget_open(struct open_file *open);
/* What is kept of a file that the caller holds; NULL: it is none of a device's. */
struct open_file *open_of(const struct file *file);

/* lane.c */

/* A lane that nobody uses; NULL: there is none. */
struct devfile_lane *take_lane(struct mirror *mirror);
/* With mirror->lock held. NULL is none. */
void free_lane(struct mirror *mirror, struct devfile_lane *lane);
/* Lets the back end reach the lanes. One that it cannot reach is not used. */
void show_lanes(struct mirror *mirror);
void hide_lanes(struct mirror *mirror);

static inline u32 lane_number(struct mirror *mirror, void *lane)
{
	return (lane - (void *)mirror->lanes) / PAGE_SIZE;
}

/* request.c */

/* Milliseconds for what ought to be answered at once. */
extern unsigned int patience_ms;

/*
 * A slot of those for notices, or for operations; or NULL. Its request is as
 * somebody left it.
 */
struct slot *take_slot(struct mirror *mirror, bool notice);
/* With mirror->lock held. Returns the file to let go of, if there is one. */
struct open_file *answered(struct mirror *mirror, struct slot *slot,
			   s64 result);
/* The queue's callback: requests have been answered. */
void queue_answered(struct virtqueue *queue);
/* Hands a request over, if this is still the life that it is for. */
int submit(struct mirror *mirror, struct slot *slot, enum slot_state state,
	   u64 life);
/* Says something that nobody waits for the answer of. */
void notice(struct mirror *mirror, u32 operation, u32 tag, u64 space, u32 file,
	    u64 life);
/* An address space is no more: then its lane is free. */
void notice_end(struct mirror *mirror, const struct space *space, u64 life);
/* A file is no more: then its number is free, if it is not lost. */
void notice_release(struct open_file *file);
/* Adds memory of the caller to what the operation may reach, and pins it. */
int reach(struct slot *slot, u64 address, u32 bytes, u32 ways);
/* Lets go of all that was added. */
void unpin(struct slot *slot);

static inline u32 tag_of(struct mirror *mirror, struct slot *slot)
{
	return slot - mirror->slots;
}

/* One that has not been handed over, or is answered. */
static inline void free_slot(struct mirror *mirror, struct slot *slot)
{
	smp_store_release(&slot->state, SLOT_FREE);
	if (wq_has_sleeper(&mirror->free))
		wake_up(&mirror->free);
}

/* A request that is not declared, and whose caller's lane is not to be looked at. */
static inline void reach_nothing(struct slot *slot)
{
	slot->request->counts = 0;
	slot->request->lane = 0;
}

/* Once it has freed what it did, or will not. */
static inline void frees_nothing(struct slot *slot)
{
	slot->freed = 0;
	slot->freed_lane = NULL;
	slot->frees_file = false;
}

/* taken.c */

/*
 * Adds the file of the caller's with this descriptor to those that a request takes,
 * where the descriptor stands at this address. An error: it is none of these
 * operations' files.
 */
int take(struct slot *slot, u64 address, u32 number);
/* Lets go of all that were added. */
void let_go(struct slot *slot);

/* operation.c */

/* Makes a request for the caller, and waits. The slot is not the caller's any more. */
s64 operate(struct mirror *mirror, struct slot *slot, bool blocks, u64 life,
	    bool at_once);

/* What a program may be told: an error's number, or up to `most`. */
static inline s64 plausible(s64 result, s64 most)
{
	if (result < -MAX_ERRNO || result > most)
		return -EIO;
	return result;
}

/* space.c */

/* The caller's address space, which the file now uses; NULL: no memory. */
struct space *space_of(struct open_file *file);
/* A file does not use it any more. */
void leave_space(struct mirror *mirror, struct space *space, u64 life);

/* file.c */

/* One under a number that is free. */
struct open_file *new_file(struct mirror *mirror,
			   struct address_space *mapping);
/* A program has it by this. */
void add_open(struct open_file *open, struct file *file);
/* Nobody here uses it any more. */
void end_file(struct open_file *open);
/* A request of a file for the caller; an error, or NULL for none of them. */
struct slot *begin(struct open_file *file, u32 operation, unsigned int flags);

/* poll.c */

/* Has the file told of what its listeners want to hear of next. */
void arm_listeners(struct open_file *file);
int devfile_signal(int descriptor, struct file *file, int on);
__poll_t devfile_poll(struct file *file, poll_table *table);

/* ioctl.c */

long devfile_ioctl(struct file *file, unsigned int number,
		   unsigned long argument);
/* The same of a program of 32 bits. */
long devfile_narrow_ioctl(struct file *file, unsigned int number,
			  unsigned long argument);

/* maps.c */

int devfile_mmap(struct file *file, struct vm_area_struct *vma);
/* No process has a page of the device's mapped any more, or maps one anew. */
void forget_maps(struct mirror *mirror);

/* node.c */

/* Prepares for nodes that are operated on by these. */
int nodes_init(const struct file_operations *operations);
void nodes_exit(void);
/* A number for a device's node, which may be opened from now on. */
int claim_minor(struct mirror *mirror);
void release_minor(struct mirror *mirror);
/* A new file of the device whose node this is. */
struct open_file *open_node(const struct inode *inode,
			    struct address_space *mapping);
/* Waits until a back end answers, and makes the node. */
void publish(struct work_struct *work);
/* Takes the node away. */
void unpublish(struct mirror *mirror);
/* Whether a device is mirrored of the class with these leads. */
bool is_mirrored(const struct lead *leads);

/* operations.c */

extern const struct file_operations devfile_operations;

#endif
