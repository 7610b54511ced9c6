// SPDX-License-Identifier: GPL-2.0-only
/*
 * What arguments of ioctls lead to, beside what their numbers say: read from the
 * caller's memory, by the tables.
 */
#include <linux/string.h>
#include <linux/uaccess.h>

#include "devfile.h"
#include "lead.h"
#include "tables.h"

/* A field of a structure of the caller's, of four or eight bytes. */
int get_field(unsigned long structure, u16 field, u16 bytes, u64 *value)
{
	*value = 0;
	return copy_from_user(value, (void __user *)(structure + field),
			      bytes) ?
		       -EFAULT :
		       0;
}

/* Adds what a structure leads to. Nothing there is believed: it only says what the driver may reach. */
int follow(struct open_file *open, struct slot *slot, const struct lead *lead,
	   unsigned long structure)
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

const struct lead *leads_of(const char *class)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(classes); i++)
		if (!strcmp(class, classes[i].class))
			return classes[i].leads;
	return NULL;
}
