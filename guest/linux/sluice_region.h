/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory of a region: what a device of this domain holds for the guest that the
 * calling process acts for (sluice-backend), as who allocates DMA memory asks for
 * it (sluice-dma).
 */
#ifndef _SLUICE_REGION_H
#define _SLUICE_REGION_H

#include <linux/types.h>

struct page;

/*
 * Pages for the device in a slot, cleared, and their address for the device. Processors
 * see them as memory that means nothing. NULL: the calling process acts for no guest that
 * has a region with the device; -EBUSY: the device holds memory of another guest; -ENOMEM.
 */
struct page *sluice_region_take(unsigned int device, size_t len, dma_addr_t *at);

/* Gives them back. False: they are of no region. */
bool sluice_region_give(struct page *page, size_t len);

#endif
