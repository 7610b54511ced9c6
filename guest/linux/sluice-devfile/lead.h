/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What arguments of ioctls lead to: tables.h, which says it, and lead.c, which
 * follows it.
 */
#ifndef _SLUICE_DEVFILE_LEAD_H
#define _SLUICE_DEVFILE_LEAD_H

#include <linux/types.h>

struct file;
struct slot;

#define NOTHING 0xffff
/* In place of an offset of a descriptor: it is wherever the program said. */
#define SAID_ELSEWHERE 0xfffd
/* In place of an offset of a descriptor: the result. Of its flags: the argument. */
#define THE_RESULT 0xfffe
#define THE_ARGUMENT 0xfffe
/* In place of an offset of a count: as many as the sound has channels. */
#define THE_CHANNELS 0xfffe
/* In place of bytes of an element: those of a frame of sound, or of one channel's part of it. */
#define A_FRAME 0xffff
#define A_SAMPLE 0xfffe

/* What one structure leads to, or one field of it. There may be several of one ioctl, in a row. */
struct lead {
	u32 number; /* of the ioctl whose argument the structure is; 0 ends a table */
	u16 pointer, pointer_bytes; /* offset of the pointer; NOTHING: none */
	u16 follows; /* in place of that: offset of memory that follows the structure */
	u16 count, count_bytes; /* field with the number of elements; NOTHING: one */
	u16 sums; /* one more than the offset of a pointer to so many words, whose sum is the number; 0: none */
	u16 size; /* bytes of an element */
	u8 ways;
	bool counted_there; /* the count is a field of the argument's structure, as `when` is */
	u16 descriptor; /* one more than the offset of the one that the ioctl answers with; 0: none */
	u16 flags; /* with that: offset of the flags that it is to have, as open(2); NOTHING: as usual */
	bool reopens; /* with that: it may be read and written as the file may that the ioctl is made on */
	u16 takes; /* one more than the offset of one that the program gives; 0: none */
	bool names_fences, has_fences; /* the answer names a property, which may be a fence; its properties may be */
	bool is_openers; /* it is for the process that opened the file, and for who has CAP_SYS_ADMIN */
	u16 asker; /* one more than the offset of the number of the process that asks, in the answer; 0: none */
	bool tells; /* it is not given here, but told again */
	u16 when; /* with any of these: field of the argument's structure that must be so, under a mask; NOTHING: any */
	u32 mask, value;
	u16 choice; /* field with a number below 32 that must not be among `refused` */
	u32 refused;
	u16 offer; /* field of the answer in which these bits are cleared */
	u32 not_offered, not_alone; /* always; without a device of the class "media" */
	u16 kind; /* field with a number that must be among `kinds`, 32 from `first_kind` on; NOTHING: any */
	u32 kinds, first_kind;
	/* Fields with the bits of a frame and a sample, and the channels, after the ioctl; NOTHING: none. */
	u16 frame_bits, sample_bits, channels;
	const struct lead *elements; /* what each leads to */
};

/* What is known of a class of devices, for programs of 64 or of 32 bits; NULL: nothing. */
const struct lead *leads_of(const char *class, bool narrow);
/* What is known of an ioctl, by a table; NULL: nothing. */
static inline const struct lead *lead_of(const struct lead *lead,
					  unsigned int number)
{
	while (lead && lead->number && lead->number != number)
		lead++;
	return lead && lead->number ? lead : NULL;
}

/* Whether a line with a descriptor counts, by its field of the argument's structure. */
bool applies(const struct lead *lead, unsigned long argument);
/* A field of a structure of the caller's, of up to eight bytes. */
int get_field(unsigned long structure, u16 field, u16 bytes, u64 *value);
/* The sum of so many words, at the address in a field. */
int add_up(unsigned long structure, u16 field, u64 *count);
/*
 * Adds to a request on a file what its ioctl's argument leads to, by all lines of
 * the ioctl. Nothing there is believed: it only says what the driver may reach.
 * An error: it is not to be made. What cannot be reached is none: the driver will say.
 */
int follow(struct file *file, struct slot *slot, const struct lead *lead,
	   unsigned long argument);
/* Has descriptors in what a driver left have the numbers again that the program knows. */
void tell_descriptors(struct file *file, const struct lead *lead,
		      unsigned long argument);

#endif
