/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What arguments of ioctls lead to: tables.h, which says it, and lead.c, which
 * follows it.
 */
#ifndef _SLUICE_DEVFILE_LEAD_H
#define _SLUICE_DEVFILE_LEAD_H

#include <linux/types.h>

struct open_file;
struct slot;

#define NOTHING 0xffff

/* What one structure leads to, or one field of it. */
struct lead {
	u32 number; /* of the ioctl whose argument the structure is; 0 ends a table */
	u16 pointer; /* offset of the pointer */
	u16 follows; /* in place of that: offset of memory that follows the structure */
	u16 count, count_bytes; /* field with the number of elements; NOTHING: one */
	u16 size; /* bytes of an element; 0: those of a frame, which frame_bits says */
	u8 ways;
	u16 descriptor; /* one more than the offset of the one that the ioctl answers with; 0: none */
	u16 flags; /* with that: offset of the flags that it is to have, as open(2) */
	u16 choice; /* field with a number below 32 that must not be among `refused` */
	u32 refused;
	u16 offer; /* field of the answer in which these bits are cleared */
	u32 not_offered;
	u16 kind; /* field with a number below 32 that must be among `kinds`; NOTHING: any */
	u32 kinds;
	u16 frame_bits; /* field with the bits of a frame, after the ioctl; NOTHING: none */
	const struct lead *elements; /* what each leads to */
};

/* What is known of a class of devices; NULL: nothing. */
const struct lead *leads_of(const char *class);
/* What is known of an ioctl, by a table; NULL: nothing. */
static inline const struct lead *lead_of(const struct lead *lead,
					  unsigned int number)
{
	while (lead && lead->number && lead->number != number)
		lead++;
	return lead && lead->number ? lead : NULL;
}

/* A field of a structure of the caller's, of four or eight bytes. */
int get_field(unsigned long structure, u16 field, u16 bytes, u64 *value);
/* Adds what a structure leads to. Nothing there is believed: it only says what the driver may reach. */
int follow(struct open_file *open, struct slot *slot, const struct lead *lead,
	   unsigned long structure);

#endif
