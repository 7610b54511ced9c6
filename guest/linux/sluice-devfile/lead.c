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

int get_field(unsigned long structure, u16 field, u16 bytes, u64 *value)
{
	*value = 0;
	return copy_from_user(value, (void __user *)(structure + field),
			      bytes) ?
		       -EFAULT :
		       0;
}

bool applies(const struct lead *lead, unsigned long argument)
{
	u64 value;

	return lead->when == NOTHING ||
	       (!get_field(argument, lead->when, 4, &value) &&
		(value & lead->mask) == lead->value);
}

/* A walk from the argument of an ioctl. */
struct walk {
	struct file *file; /* that the ioctl is made on */
	struct slot *slot; /* NULL: it is over, and descriptors are told */
	unsigned long argument;
	int error; /* of a descriptor */
};

/* A descriptor of the program's, at this address. */
static void meet(struct walk *walk, const struct lead *lead, u64 address)
{
	u64 value;

	if (!applies(lead, walk->argument) ||
	    get_field(address, 0, 4, &value))
		return;
	if (!walk->slot) {
		value -= SLUICE_DEVFILE_LENT;
		if (value < SLUICE_DEVFILE_MAX_NUMBER)
			put_user((u32)value, (u32 __user *)address);
	} else if (!lead->tells && !walk->error) {
		walk->error = take(walk->slot, address, value);
	}
}

static u64 size_of(const struct open_file *open, const struct lead *lead)
{
	switch (lead->size) {
	case A_FRAME:
		return open->frame;
	case A_SAMPLE:
		return open->sample;
	default:
		return lead->size;
	}
}

int add_up(unsigned long structure, u16 field, u64 *count)
{
	u64 address, word, sum = 0, i;
	int error = get_field(structure, field, 8, &address);

	if (*count > SLUICE_DEVFILE_MAX_BYTES / 4)
		return -E2BIG;
	for (i = 0; i < *count && !error; i++) {
		error = get_field(address + 4 * i, 0, 4, &word);
		sum += word;
	}
	*count = sum;
	return error;
}

static int get_count(struct walk *walk, const struct open_file *open,
		     const struct lead *lead, unsigned long structure,
		     u64 *count)
{
	int error;

	switch (lead->count) {
	case NOTHING:
		*count = 1;
		return 0;
	case THE_CHANNELS:
		*count = open->channels;
		return 0;
	default:
		error = get_field(lead->counted_there ? walk->argument :
							structure,
				  lead->count, lead->count_bytes, count);
		if (!error && lead->sums)
			error = add_up(structure, lead->sums - 1, count);
		return error;
	}
}

/* What a structure leads to, by one line. */
static int go(struct walk *walk, const struct lead *lead,
	      unsigned long structure)
{
	const struct open_file *open = walk->file->private_data;
	u64 address = structure + lead->follows, count, kind;
	u64 size = size_of(open, lead);
	const struct lead *inner;
	int error;
	u64 i;

	if (lead->kind != NOTHING) {
		error = get_field(structure, lead->kind, 4, &kind);
		/* What is below the first is far above all. */
		kind -= lead->first_kind;
		if (error || kind >= 32 || !(lead->kinds & BIT(kind)))
			return error;
	}
	if (lead->takes)
		meet(walk, lead, structure + lead->takes - 1);
	if (lead->pointer == NOTHING && lead->follows == NOTHING)
		return 0;
	if (!walk->slot && !lead->elements)
		return 0;
	error = get_count(walk, open, lead, structure, &count);
	if (!error && lead->pointer != NOTHING)
		error = get_field(structure, lead->pointer,
				  lead->pointer_bytes, &address);
	if (error || !address || !count || !size)
		return error;
	if (count > SLUICE_DEVFILE_MAX_BYTES / size)
		return -E2BIG;
	if (walk->slot)
		error = reach(walk->slot, address, count * size, lead->ways);
	for (inner = lead->elements; inner && inner->number; inner++)
		for (i = 0; i < count && !error; i++)
			if (walk->slot || inner->takes)
				error = go(walk, inner, address + i * size);
	return error;
}

int follow(struct file *file, struct slot *slot, const struct lead *lead,
	   unsigned long argument)
{
	struct walk walk = { .file = file, .slot = slot, .argument = argument };
	u32 number = lead->number;

	for (; lead->number == number; lead++)
		go(&walk, lead, argument);
	return walk.error;
}

void tell_descriptors(struct file *file, const struct lead *lead,
		      unsigned long argument)
{
	struct walk walk = { .file = file, .argument = argument };
	u32 number = lead->number;

	for (; lead->number == number; lead++)
		if (lead->takes || lead->elements)
			go(&walk, lead, argument);
}

const struct lead *leads_of(const char *class, bool narrow)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(classes); i++)
		if (!strcmp(class, classes[i].class))
			return narrow ? classes[i].narrow : classes[i].leads;
	return NULL;
}
