// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fences that properties of a screen name: a commit (DRM_IOCTL_MODE_ATOMIC) takes a
 * descriptor as the value of IN_FENCE_FD, and has one written where the value of
 * OUT_FENCE_PTR says.
 *
 * A property's number is the driver's. A program learns it by its name, and the
 * same answer tells it here, for the file that it asked by: what one program has
 * read concerns no other. Who has not asked, or another number told, has a commit
 * made whose values mean nothing there: the driver finds no such descriptor, and
 * may write nowhere.
 *
 * Source: the kernel's include/uapi/drm/drm_mode.h and drivers/gpu/drm/drm_atomic_uapi.c.
 */
#include <linux/string.h>
#include <uapi/drm/drm.h>

#include "fence.h"
#include "lead.h"

/* Of the atomic commit. */
#define FIELD(name) offsetof(struct drm_mode_atomic, name)
#define NO_FENCE U64_MAX

void note_fence(struct open_file *open, unsigned long argument)
{
	char name[DRM_PROP_NAME_LEN] = "";
	unsigned int i;
	u64 number, word;

	if (get_field(argument, offsetof(struct drm_mode_get_property, prop_id),
		      4, &number))
		return;
	for (i = 0; i < sizeof(name); i += sizeof(word)) {
		if (get_field(argument,
			      offsetof(struct drm_mode_get_property, name) + i,
			      sizeof(word), &word))
			return;
		memcpy(name + i, &word, sizeof(word));
	}
	if (!strncmp(name, "IN_FENCE_FD", sizeof(name)))
		WRITE_ONCE(open->in_fence, number);
	else if (!strncmp(name, "OUT_FENCE_PTR", sizeof(name)))
		WRITE_ONCE(open->out_fence, number);
}

/* One property, whose value is at an address. */
static int find_fence(struct open_file *open, struct slot *slot, u64 property,
		      u64 address, u64 *out)
{
	u64 value;

	if (!property || (property != READ_ONCE(open->in_fence) &&
			  property != READ_ONCE(open->out_fence)))
		return 0;
	if (get_field(address, 0, sizeof(value), &value))
		return 0;
	if (property == READ_ONCE(open->in_fence)) {
		if (!slot || value == NO_FENCE)
			return 0;
		return take(slot, address, value);
	}
	if (!value)
		return 0;
	/* One descriptor comes with an answer, and in one page. */
	if (*out || value % sizeof(u32))
		return -EINVAL;
	*out = value;
	return 0;
}

bool only_tests(unsigned long argument)
{
	u64 flags;

	return !get_field(argument, FIELD(flags), 4, &flags) &&
	       flags & DRM_MODE_ATOMIC_TEST_ONLY;
}

int find_fences(struct open_file *open, struct slot *slot,
		unsigned long argument, u64 *out)
{
	u64 count, properties, values, property, i;
	int error = 0;

	*out = 0;
	if (!READ_ONCE(open->in_fence) && !READ_ONCE(open->out_fence))
		return 0;
	if (get_field(argument, FIELD(count_objs), 4, &count) ||
	    get_field(argument, FIELD(props_ptr), 8, &properties) ||
	    get_field(argument, FIELD(prop_values_ptr), 8, &values))
		return 0;
	/* What cannot be read, or is too much to be reached, the driver refuses. */
	if (add_up(argument, FIELD(count_props_ptr), &count) ||
	    count > SLUICE_DEVFILE_MAX_BYTES / sizeof(u64))
		return 0;
	for (i = 0; i < count && !error; i++) {
		if (get_field(properties, 0, 4, &property))
			return 0;
		error = find_fence(open, slot, property, values, out);
		properties += sizeof(u32);
		values += sizeof(u64);
	}
	return error;
}
