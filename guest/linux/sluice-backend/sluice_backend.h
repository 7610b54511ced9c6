/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * What a program in a driver domain asks of /dev/sluice/GUEST.DEVICE.
 *
 * The file is the window: the guest's memory as far as the guest lets the
 * device have it, where I/O address 0 of the guest is offset 0. It is mapped
 * shared (mmap(2)); its size is where lseek(fd, 0, SEEK_END) arrives. One
 * program at a time has it open (-EBUSY). What was offered stays offered when
 * the file is closed. When the function is gone, all eventfds are signalled,
 * calls fail with -ENODEV, and the mapping shows a page that means nothing.
 */
#ifndef _SLUICE_BACKEND_H
#define _SLUICE_BACKEND_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define SLUICE_BACKEND_NAME_SIZE 64
#define SLUICE_BACKEND_SOURCE_SIZE 128
#define SLUICE_BACKEND_CONFIG_SIZE 256
#define SLUICE_BACKEND_RANGE_COUNT 16
#define SLUICE_BACKEND_QUEUE_COUNT 17

/* A part of the window in which the guest issued memory. */
struct sluice_backend_range {
	__u64 offset;
	__u64 bytes;
};

/* A queue as the guest set it up; addresses are offsets in the window. */
struct sluice_backend_queue {
	__u32 entries;
	__u32 enabled;
	__u64 descriptors;
	__u64 driver;
	__u64 device;
};

/* The function's registers; crates/hypercall says what each means. */
struct sluice_backend_info {
	__u32 kind;
	__u32 status;
	__u32 state;
	__u32 slot;
	__u64 device_features;
	__u64 driver_features;
	__u64 window;
	__u32 queue_count;
	__u32 queue_size;
	__u32 config_len;
	__u32 range_count;
	__u8 name[SLUICE_BACKEND_NAME_SIZE];
	__u8 source[SLUICE_BACKEND_SOURCE_SIZE];
	__u8 config[SLUICE_BACKEND_CONFIG_SIZE];
	struct sluice_backend_range ranges[SLUICE_BACKEND_RANGE_COUNT];
	struct sluice_backend_queue queues[SLUICE_BACKEND_QUEUE_COUNT];
};

/* What the guest is offered. */
struct sluice_backend_offer {
	__u64 features;
	__u32 queue_count;
	__u32 queue_size;
	__u32 config_len;
	__u32 reserved; /* zero */
	__u8 config[SLUICE_BACKEND_CONFIG_SIZE];
};

/* The device's configuration. */
struct sluice_backend_config {
	__u32 len;
	__u32 reserved; /* zero */
	__u8 bytes[SLUICE_BACKEND_CONFIG_SIZE];
};

/* An eventfd for a queue. */
struct sluice_backend_event {
	__u32 queue;
	__s32 fd; /* -1: none any more */
};

/* A copy between the program and a process of the guest (a device file's). */
struct sluice_backend_copy {
	__u64 address; /* in the process */
	__u64 local; /* in the program */
	__u32 tag; /* of the guest's operation */
	__u32 bytes; /* up to SLUICE_DEVFILE_MAX_COPY */
	__u32 way; /* SLUICE_DEVFILE_IN or SLUICE_DEVFILE_OUT */
	__u32 reserved; /* zero */
};

/*
 * Pages of the program's that the guest is to see as a map of a device file:
 * those of a shared mapping of a device file here. What the driver takes out
 * of that mapping, the guest sees no more.
 */
struct sluice_backend_map {
	__u64 local; /* in the program */
	__u32 first; /* page in the device's memory of maps */
	__u32 pages;
	__u32 write; /* 1: the guest may write them, too */
	__u32 reserved; /* zero */
};

/* The end of such a map. */
struct sluice_backend_unmap {
	__u32 first;
	__u32 reserved; /* zero */
};

/* What a guest that lends pages by a table is asked for. */
struct sluice_backend_table {
	__u64 list; /* in the program: entries of SLUICE_TABLE_MAP or SLUICE_TABLE_UNMAP */
	__u32 count; /* up to SLUICE_GRANT_MAX_BATCH */
	__u32 unmap; /* 1: to unmap them; 0: to map them */
};

/* What is copied between pages of a guest that lends by a table and the room. */
struct sluice_backend_table_copy {
	__u64 list; /* in the program: entries of SLUICE_TABLE_COPY, with a place in the room for an address */
	__u32 count; /* up to SLUICE_BACKEND_MAX_COPIES */
	__u32 reserved; /* zero */
};

#define SLUICE_BACKEND_MAX_COPIES 256

/* Bytes of the room: memory of this domain, which is in the file after the window. */
#define SLUICE_BACKEND_ROOM_SIZE (256UL << 10)

#define SLUICE_BACKEND_INFO _IOR('L', 0x00, struct sluice_backend_info)
/*
 * -ERANGE: number or size of queues, or the length of the configuration, is
 * out of range. -EOPNOTSUPP: the guest uses features that are not among these.
 */
#define SLUICE_BACKEND_OFFER _IOW('L', 0x01, struct sluice_backend_offer)
/* No queue of the guest's former use is touched any more. */
#define SLUICE_BACKEND_RESET_DONE _IO('L', 0x02)
/* The configuration is now this one, and the guest is told. */
#define SLUICE_BACKEND_CONFIG_CHANGED \
	_IOW('L', 0x03, struct sluice_backend_config)
/* The device cannot go on; the guest is told that it needs a reset. */
#define SLUICE_BACKEND_NEEDS_RESET _IO('L', 0x04)
/*
 * An eventfd that is signalled when status or state may have changed, and once
 * now. The queue does not matter.
 */
#define SLUICE_BACKEND_SET_EVENT _IOW('L', 0x05, struct sluice_backend_event)
/*
 * An eventfd that is signalled when the guest made buffers of the queue
 * available, and once now, so that none is missed that was earlier.
 */
#define SLUICE_BACKEND_SET_KICK _IOW('L', 0x06, struct sluice_backend_event)
/*
 * An eventfd that the back end signals when it used buffers of the queue: the
 * module empties it and has the guest told.
 */
#define SLUICE_BACKEND_SET_CALL _IOW('L', 0x07, struct sluice_backend_event)
/*
 * Copies what the guest declared that an operation may reach. -EPERM: it did
 * not. -EFAULT: one side has no such memory now; the guest's may come again.
 */
#define SLUICE_BACKEND_COPY _IOW('L', 0x08, struct sluice_backend_copy)
/*
 * Shows pages to the guest. -EINVAL: they are not whole pages of such a mapping,
 * or not memory (registers cannot be shown). -EEXIST: something is shown there.
 */
#define SLUICE_BACKEND_MAP _IOW('L', 0x09, struct sluice_backend_map)
/* Shows them no more. -ENOENT: nothing is shown from this page on. */
#define SLUICE_BACKEND_UNMAP _IOW('L', 0x0a, struct sluice_backend_unmap)
/*
 * The person at a device file wants the next guest in the foreground. Only the
 * function whose guest is there now can say so.
 */
#define SLUICE_BACKEND_PASS_FOCUS _IO('L', 0x0b)
/*
 * The calling process acts for a process of the guest from now on: what drivers
 * allocate for it with a device that has regions is memory of the guest's region.
 * Answered with 1 if the guest has one, and with 0 otherwise.
 */
#define SLUICE_BACKEND_ACT _IO('L', 0x0c)
/*
 * Maps or unmaps pages in the window. Answered with how many were, up to one that could
 * not be. -ENOTCONN: the guest does not lend by a table. -ENOENT: the first one is not
 * permitted, or not mapped. -EPERM: it may only be read. -EEXIST: it is mapped. All are
 * unmapped when the file is closed.
 */
#define SLUICE_BACKEND_TABLE _IOW('L', 0x0d, struct sluice_backend_table)
/*
 * Copies. Answered with how many entries were, up to one that could not be. -ENXIO: the
 * room has not been mapped. -ERANGE: a place is not in it. Else as above.
 */
#define SLUICE_BACKEND_TABLE_COPY _IOW('L', 0x0e, struct sluice_backend_table_copy)

#endif
