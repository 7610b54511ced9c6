/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef _REGION_H
#define _REGION_H

#include <linux/types.h>

struct region;

/* The region of the back-end function in a slot, whose window has struct pages. NULL: it has none, or there is no memory. */
struct region *region_new(u32 slot);

/* Nobody takes memory of it any more. Waits for drivers that have some of it yet. */
void region_end(struct region *region);

/* Whether a frame is of the region. */
bool region_has(const struct region *region, unsigned long frame);

/* The calling process acts for a process of the guest from now on. Returns 1. */
int region_act(struct region *region);

#endif
