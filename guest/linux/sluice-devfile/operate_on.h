/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Operations on a file that go by the lane: what they take is some hundred
 * instructions in all, so that this is part of its callers.
 */
#ifndef _SLUICE_DEVFILE_OPERATE_ON_H
#define _SLUICE_DEVFILE_OPERATE_ON_H

#include "devfile.h"

/* Whether the other side has been told how calls on the file wait now. */
static inline bool is_told(struct open_file *file, u32 flags)
{
	return READ_ONCE(file->told) == (O_CREAT | (flags & O_NONBLOCK));
}

static inline void tell(struct open_file *file, u32 flags)
{
	/* The other bit says that anything has been said. */
	WRITE_ONCE(file->told, O_CREAT | (flags & O_NONBLOCK));
}

/* Reads, writes or makes an ioctl, whose calls on the driver wait as the file does now. */
static inline s64 operate_on(struct open_file *open, struct slot *slot,
			     u32 flags, bool at_once)
{
	s64 result;

	/* What it is ready for now is another question. */
	WRITE_ONCE(open->ready, 0);
	result = operate(open->mirror, slot, true, open->life,
			 at_once && is_told(open, flags));

	tell(open, flags);
	return result;
}

#endif
