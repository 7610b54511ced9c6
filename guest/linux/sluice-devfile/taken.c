// SPDX-License-Identifier: GPL-2.0-only
/*
 * Descriptors that ioctls take: of files that are mirrored, too. The other side
 * gets the files, and the request holds them here until it is over.
 */
#include <linux/file.h>

#include "devfile.h"

int take(struct slot *slot, u64 address, u32 number)
{
	u32 count = slot->taken_count;
	struct devfile_descriptor *descriptor;
	struct open_file *open;
	struct file *file;

	if (number >= SLUICE_DEVFILE_MAX_NUMBER)
		return (s32)number < 0 ? -EINVAL : -EMFILE;
	if (count == SLUICE_DEVFILE_MAX_DESCRIPTORS)
		return -E2BIG;
	file = fget(number);
	if (!file)
		return -EINVAL;
	/* What is not of another domain means nothing there. */
	open = open_of(file);
	if (!open) {
		fput(file);
		return -EINVAL;
	}
	descriptor = &slot->request->descriptors[count];
	descriptor->address = cpu_to_le64(address);
	descriptor->file = cpu_to_le16(open->number);
	descriptor->number = cpu_to_le16(number);
	descriptor->device = cpu_to_le32(open->device);
	slot->taken[count] = file;
	slot->taken_count = count + 1;
	return 0;
}

void let_go(struct slot *slot)
{
	u32 i;

	for (i = 0; i < slot->taken_count; i++)
		fput(slot->taken[i]);
	slot->taken_count = 0;
}
