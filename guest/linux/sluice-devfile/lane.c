// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lanes: pages of which each address space has one, in which the back end looks
 * for the next request for a while after it has answered one (crates/devfile,
 * lane.rs).
 */
#include <linux/dma-mapping.h>
#include <linux/io.h>

#include "devfile.h"

/* With mirror->lock held. */
void free_lane(struct mirror *mirror, struct devfile_lane *lane)
{
	if (lane)
		__clear_bit(lane_number(mirror, lane), mirror->lanes_used);
}

struct devfile_lane *take_lane(struct mirror *mirror)
{
	struct devfile_lane *lane = NULL;
	unsigned long flags;
	u32 number;

	spin_lock_irqsave(&mirror->lock, flags);
	number = find_first_zero_bit(mirror->lanes_used,
				     SLUICE_DEVFILE_MAX_SPACES);
	if (number < SLUICE_DEVFILE_MAX_SPACES) {
		__set_bit(number, mirror->lanes_used);
		lane = (void *)mirror->lanes + number * PAGE_SIZE;
		WRITE_ONCE(lane->state, SLUICE_DEVFILE_LANE_CLOSED);
	}
	spin_unlock_irqrestore(&mirror->lock, flags);
	return lane;
}

/* The back end reaches what is mapped for it only. Otherwise addresses are physical. */
static bool by_grants(struct mirror *mirror)
{
	return virtio_has_feature(mirror->vdev, VIRTIO_F_ACCESS_PLATFORM);
}

/* Lets the back end reach the lanes. One that it cannot reach is not used. */
void show_lanes(struct mirror *mirror)
{
	struct device *dma = mirror->vdev->dev.parent;
	u32 i;

	for (i = 0; i < SLUICE_DEVFILE_MAX_SPACES; i++) {
		void *lane = (void *)mirror->lanes + i * PAGE_SIZE;
		dma_addr_t address;

		WRITE_ONCE(((struct devfile_lane *)lane)->state,
			   SLUICE_DEVFILE_LANE_CLOSED);
		if (!by_grants(mirror)) {
			mirror->lane_addresses[i] = virt_to_phys(lane);
			continue;
		}
		address = dma_map_single(dma, lane, PAGE_SIZE,
					 DMA_BIDIRECTIONAL);
		if (!dma_mapping_error(dma, address))
			mirror->lane_addresses[i] = address;
	}
}

void hide_lanes(struct mirror *mirror)
{
	struct device *dma = mirror->vdev->dev.parent;
	u32 i;

	for (i = 0; i < SLUICE_DEVFILE_MAX_SPACES; i++) {
		if (mirror->lane_addresses[i] && by_grants(mirror))
			dma_unmap_single(dma, mirror->lane_addresses[i],
					 PAGE_SIZE, DMA_BIDIRECTIONAL);
		mirror->lane_addresses[i] = 0;
	}
}
