// SPDX-License-Identifier: GPL-2.0-only
/*
 * Regions: memory that a device holds for a guest, in place of this domain's. A
 * driver that allocates DMA memory in a system call made for a guest gets it from that
 * guest's region, without knowing: who the system call is made for is known by its
 * address space. The device reaches one region at a time, which it is told with the first
 * page that is taken and the last that is given back.
 *
 * Source: Amiri Sani, Boos, Qin and Zhong, "I/O Paravirtualization at the Device File
 * Boundary", 4.2 and 5.3.
 *
 * Lock: regions_lock, for everything here.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/kvm_para.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

#include "sluice.h"
#include "sluice_region.h"
#include "region.h"

/* A process that acts for the guest, by its address space. */
struct program {
	struct list_head entry; /* in region->programs */
	struct mm_struct *mm;
};

struct region {
	struct list_head entry; /* in regions */
	u32 slot; /* of the function */
	unsigned long first; /* frame number */
	unsigned long pages;
	unsigned long *taken; /* by page */
	unsigned long count; /* of those that are taken */
	unsigned int device; /* slot of the device that holds them, if there are any */
	struct list_head programs;
	bool left;
};

static LIST_HEAD(regions);
static DEFINE_SPINLOCK(regions_lock);

struct region *region_new(u32 slot)
{
	long found = kvm_hypercall1(SLUICE_REGION_FIND, slot);
	struct region *region;

	if (found <= 0)
		return NULL;
	region = kzalloc(sizeof(*region), GFP_KERNEL);
	if (!region)
		return NULL;
	region->slot = slot;
	region->first = PHYS_PFN(found & ~(SLUICE_REGION_UNIT - 1));
	region->pages = (found & (SLUICE_REGION_UNIT - 1)) *
			(SLUICE_REGION_UNIT >> PAGE_SHIFT);
	INIT_LIST_HEAD(&region->programs);
	region->taken = bitmap_zalloc(region->pages, GFP_KERNEL);
	if (!region->taken) {
		kfree(region);
		return NULL;
	}
	spin_lock_irq(&regions_lock);
	list_add(&region->entry, &regions);
	spin_unlock_irq(&regions_lock);
	return region;
}

bool region_has(const struct region *region, unsigned long frame)
{
	return frame >= region->first && frame - region->first < region->pages;
}

/* Forgets programs: all of them, or those that have ended. */
static void forget(struct region *region, bool all)
{
	struct program *program, *next;

	list_for_each_entry_safe(program, next, &region->programs, entry) {
		if (!all && atomic_read(&program->mm->mm_users))
			continue;
		list_del(&program->entry);
		/* The address space itself has ended, or its own users keep it. */
		mmdrop(program->mm);
		kfree(program);
	}
}

void region_end(struct region *region)
{
	unsigned int waited = 0;

	spin_lock_irq(&regions_lock);
	region->left = true;
	forget(region, true);
	while (region->count) {
		spin_unlock_irq(&regions_lock);
		if (++waited == 500)
			pr_warn("a driver still has memory of a region\n");
		msleep(20);
		spin_lock_irq(&regions_lock);
	}
	list_del(&region->entry);
	spin_unlock_irq(&regions_lock);
	bitmap_free(region->taken);
	kfree(region);
}

int region_act(struct region *region)
{
	struct program *program = kmalloc(sizeof(*program), GFP_KERNEL);

	if (!program)
		return -ENOMEM;
	program->mm = current->mm;
	mmgrab(program->mm);
	spin_lock_irq(&regions_lock);
	forget(region, false);
	list_add(&program->entry, &region->programs);
	spin_unlock_irq(&regions_lock);
	return 1;
}

/* The region of the guest that the calling process acts for. */
static struct region *region_of_current(void)
{
	struct region *region;
	struct program *program;

	list_for_each_entry(region, &regions, entry)
		list_for_each_entry(program, &region->programs, entry)
			if (program->mm == current->mm)
				return region;
	return NULL;
}

static bool holds_another(unsigned int device, struct region *region)
{
	struct region *other;

	list_for_each_entry(other, &regions, entry)
		if (other != region && other->count && other->device == device)
			return true;
	return false;
}

static struct page *take(struct region *region, unsigned int device, unsigned long pages,
			 dma_addr_t *at)
{
	unsigned long first, cleared;
	dma_addr_t start; /* of the region, for the device */
	long answer;

	if (region->count && region->device != device)
		return ERR_PTR(-EBUSY);
	first = bitmap_find_next_zero_area(region->taken, region->pages, 0, pages, 0);
	if (first >= region->pages)
		return ERR_PTR(-ENOMEM);
	/* Whose memory the device holds now must not be taken from under it. */
	if (!region->count && holds_another(device, region))
		return ERR_PTR(-EBUSY);
	answer = kvm_hypercall2(SLUICE_REGION_USE, device, region->slot);
	if (answer == -ENOENT)
		return NULL;
	if (answer < 0)
		return ERR_PTR(answer);
	start = answer;
	region->device = device;
	for (cleared = 0; cleared < pages; cleared += answer) {
		answer = kvm_hypercall3(SLUICE_REGION_CLEAR, region->slot,
					first + cleared, pages - cleared);
		if (answer <= 0)
			return ERR_PTR(-EIO);
	}
	bitmap_set(region->taken, first, pages);
	region->count += pages;
	*at = start + (first << PAGE_SHIFT);
	return pfn_to_page(region->first + first);
}

struct page *sluice_region_take(unsigned int device, size_t len, dma_addr_t *at)
{
	struct page *page = NULL;
	struct region *region;
	unsigned long flags;

	if (!current->mm || in_interrupt())
		return NULL;
	spin_lock_irqsave(&regions_lock, flags);
	region = region_of_current();
	if (region)
		page = take(region, device, PAGE_ALIGN(len) >> PAGE_SHIFT, at);
	spin_unlock_irqrestore(&regions_lock, flags);
	return page;
}
EXPORT_SYMBOL_GPL(sluice_region_take);

bool sluice_region_give(struct page *page, size_t len)
{
	unsigned long frame = page_to_pfn(page), pages = PAGE_ALIGN(len) >> PAGE_SHIFT;
	struct region *region;
	unsigned long flags;
	bool found = false;

	spin_lock_irqsave(&regions_lock, flags);
	list_for_each_entry(region, &regions, entry) {
		if (!region_has(region, frame))
			continue;
		bitmap_clear(region->taken, frame - region->first, pages);
		region->count -= pages;
		if (!region->count && !region->left)
			kvm_hypercall2(SLUICE_REGION_USE, region->device,
				       SLUICE_REGION_NONE);
		found = true;
		break;
	}
	spin_unlock_irqrestore(&regions_lock, flags);
	return found;
}
EXPORT_SYMBOL_GPL(sluice_region_give);
