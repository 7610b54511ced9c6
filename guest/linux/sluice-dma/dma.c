// SPDX-License-Identifier: GPL-2.0-only
/*
 * DMA operations of devices that reach only what this guest issues to them:
 * virtio devices that other domains serve (`grants = "pages"` of the Sluice
 * hypervisor), and physical ones behind an IOMMU (`dma = "fine"`).
 *
 * Each device has a space of grants, in which reference n is address n << 12 of
 * the device's. The reference of a page is its frame number here, so that a DMA
 * address is a physical address.
 *
 * A page is issued when it is mapped for DMA, and stays issued: the next mapping
 * takes a look into a table and no hypercall. As long as it is issued the module
 * holds a reference to it, so that it cannot be freed and become something else.
 * (A page inside a block that was allocated as a whole has none of its own: the kernel
 * tells when the block is freed.) What has not been mapped for longest is revoked when
 * more than `pages` pages are issued, or memory is short: many pages by one call, which
 * are let go of only then.
 *
 * Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for
 * Safe and Efficient I/O Virtualization", 3.2 and 3.3.
 *
 * A physical device with regions (`dma = "regions"`) only reads what is issued to it. What a
 * driver allocates for the process of a guest is memory of that guest's region, if it has one
 * (sluice_region.h).
 *
 * Locks: pools_lock; spaces_lock (the list), then space->lock (all else of a space).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dma-direct.h>
#include <linux/dma-map-ops.h>
#include <linux/kvm_para.h>
#include <linux/list.h>
#include <linux/livepatch.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/percpu.h>
#include <linux/scatterlist.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/sysfs.h>
#include <linux/tracepoint.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <net/sock.h>

#include "sluice.h"
#include "sluice_region.h"
#include "table.h"

/* Largest compound page that is issued as a whole. */
#define WHOLE_ORDER 3
/* Pools, pages that one has at most, and how many of them are looked at for one that is idle. */
#define POOLS 16
#define POOL_MOST 256
#define POOL_LOOK 8
/* Pages that are revoked together, if there are so many, and how many grants are looked at for them by one mapping. */
#define REVOKE_BATCH 64
#define REVOKE_LOOK 1024

static unsigned long pages;
module_param(pages, ulong, 0444);
MODULE_PARM_DESC(pages, "Pages that stay issued to a device (default: a quarter of memory)");

static unsigned int pooled = 128;
module_param(pooled, uint, 0444);
MODULE_PARM_DESC(pooled, "Pages of 32 KiB from which buffers of a receive queue, or for sending, are taken again and again (default: 128, at most 256; 0: none)");

static bool reuse = true;
module_param(reuse, bool, 0444);
MODULE_PARM_DESC(reuse, "Leave pages issued when they are unmapped (default: yes)");

static bool by_table;
module_param_named(table, by_table, bool, 0444);
MODULE_PARM_DESC(table, "Lend pages to virtio devices by a table, as who serves them has them mapped for each use (default: no)");

/* How long pages stay issued that nothing is mapped in. */
enum keep {
	KEEP_ALLOCATED, /* until they are freed: they have no references of their own */
	KEEP_HELD, /* while a reference to them is held */
	KEEP_POOLED, /* while they are in the pool of fragments */
};

/* Neighbouring pages that are issued together. */
struct grant {
	enum keep keep;
	struct page *head;
	unsigned long first; /* frame number */
	u32 active; /* mappings */
	u16 count; /* pages; 0: the entry is free */
	bool writable;
	bool recent; /* mapped since the hand was here */
	u32 changed; /* number of the operation that issued it, or made it writable */
	u32 next; /* free entry */
};

/* An entry of a list for SLUICE_GRANT_BATCH. */
struct step {
	u64 reference;
	u64 page;
};

struct space {
	struct dma_map_ops operations; /* of its device, which finds it by them */
	struct list_head entry; /* in spaces */
	struct pci_dev *pdev;
	u64 number;
	unsigned long frames; /* references */
	unsigned long limit; /* pages */

	spinlock_t lock;
	u32 *owner; /* by frame number: 1 + index of the grant; 0: none */
	struct grant *grants;
	u32 capacity;
	u32 free; /* first free grant; capacity: none */
	u32 hand;
	unsigned long issued; /* pages */
	unsigned long unreferenced; /* those of KEEP_ALLOCATED */

	struct step *steps; /* what the next call does */
	u32 step_count;
	struct page *released[SLUICE_GRANT_MAX_BATCH]; /* to let go of after it */
	u32 released_count;
	u32 operation; /* number of the mapping that is under way */
	int error; /* of it */
	bool regions; /* the device has some */
	bool broken; /* a page is issued that should not be: none is let go of any more */

	u64 maps;
	u64 calls;
	u64 issues;
	u64 revokes;
	u64 failures;
};

/* Pages are let go of that had references of ours: no other grants are in what is freed. */
static DEFINE_PER_CPU(bool, releasing);

static LIST_HEAD(spaces);
static DEFINE_SPINLOCK(spaces_lock);

/*
 * Pages from which network buffers are taken, and to which they come back: else each
 * would be new to the device, and issued. There is a pool for each receive queue, and
 * one for what sockets send by each device, so that nothing else is ever in a page that
 * stays issued. The pool has a reference to each page; one that has no other is idle,
 * and nothing is mapped in it.
 */
struct pool {
	const void *user; /* NULL: nobody uses it */
	struct page *pages[POOL_MOST];
	u32 count;
	u32 hand;
};

static struct pool pools[POOLS];
static DEFINE_SPINLOCK(pools_lock);

/*
 * The pool that a page is in: its index says so, which means something in a file only.
 * (What is private of a page is virtio_net's here.)
 */
static struct pool *pool_with(struct page *head)
{
	unsigned long mark = head->index;

	return mark >= (unsigned long)pools && mark < (unsigned long)(pools + POOLS) ?
		       (struct pool *)mark : NULL;
}

/*
 * Does what is listed, all of it: what comes after a page that cannot be issued may be
 * the end of another one. What the hypervisor says is so already is done.
 */
static void do_steps(struct space *space)
{
	u32 done = 0, i;

	while (done < space->step_count) {
		struct step *step = space->steps + done;
		long result = kvm_hypercall3(SLUICE_GRANT_BATCH, space->number,
					     virt_to_phys(step), space->step_count - done);

		space->calls++;
		if (result > 0) {
			done += result;
			continue;
		}
		done++;
		if (result == -EEXIST || result == -ENOENT)
			continue;
		if (step->reference & SLUICE_GRANT_LIST_REVOKE)
			space->broken = true;
		else
			space->error = -ENOMEM;
	}
	space->step_count = 0;
	WARN_ONCE(space->broken, "a page cannot be revoked\n");
	/* Interrupts are off, so that nothing else is freed here meanwhile. */
	__this_cpu_write(releasing, true);
	for (i = 0; i < space->released_count && !space->broken; i++)
		put_page(space->released[i]);
	__this_cpu_write(releasing, false);
	space->released_count = 0;
}

static struct step *more_steps(struct space *space, u32 count)
{
	struct step *step;

	if (space->step_count + count > SLUICE_GRANT_MAX_BATCH)
		do_steps(space);
	step = space->steps + space->step_count;
	space->step_count += count;
	return step;
}

/* Issues pages, or lets them be written that the device may only read so far. */
static void issue(struct space *space, struct grant *grant)
{
	struct step *step = more_steps(space, grant->count);
	u64 rights = grant->writable ? 0 : SLUICE_GRANT_READ_ONLY;
	u16 i;

	for (i = 0; i < grant->count; i++) {
		u64 frame = grant->first + i;

		step[i] = (struct step){ frame, frame << PAGE_SHIFT | rights };
	}
	grant->changed = space->operation;
	space->issues += grant->count;
}

/* Revokes pages that nothing is mapped in. Their reference is let go of when that is done. */
static void revoke(struct space *space, struct grant *grant)
{
	struct step *step = more_steps(space, grant->count);
	u16 i;

	for (i = 0; i < grant->count; i++) {
		/* No count of uses keeps it: back ends of devices have none. */
		step[i] = (struct step){ (grant->first + i) | SLUICE_GRANT_LIST_REVOKE, 0 };
		space->owner[grant->first + i] = 0;
	}
	if (grant->keep == KEEP_ALLOCATED)
		space->unreferenced--;
	if (grant->keep == KEEP_HELD)
		space->released[space->released_count++] = grant->head;
	space->revokes += grant->count;
	space->issued -= grant->count;
	grant->count = 0;
	grant->next = space->free;
	space->free = grant - space->grants;
}

/*
 * Revokes what has not been mapped for longest, until no more than `wanted` pages are
 * issued, or enough was looked at, or one call can do no more.
 */
static void revoke_oldest(struct space *space, unsigned long wanted)
{
	u32 looked;

	for (looked = 0; looked < REVOKE_LOOK && space->issued > wanted; looked++) {
		struct grant *grant = space->grants + space->hand;

		if (grant->count && !grant->active && !grant->recent) {
			if (space->step_count + grant->count > SLUICE_GRANT_MAX_BATCH)
				break;
			revoke(space, grant);
		}
		grant->recent = false;
		if (++space->hand == space->capacity)
			space->hand = 0;
	}
}

/* What is issued together with a page. */
static struct grant extent_of(struct space *space, unsigned long frame)
{
	struct grant grant = { .first = frame, .count = 1 };
	struct folio *folio = page_folio(pfn_to_page(frame));
	unsigned long first = folio_pfn(folio);
	unsigned int order = folio_order(folio);
	u16 i;

	grant.head = &folio->page;
	if (pool_with(grant.head))
		grant.keep = KEEP_POOLED;
	else if (folio_try_get(folio))
		grant.keep = KEEP_HELD;
	else
		return grant;
	/* Other objects of a slab are nothing to the device. */
	if (order > WHOLE_ORDER || folio_test_slab(folio))
		return grant;
	for (i = 0; i < 1 << order; i++)
		if (first + i >= space->frames || space->owner[first + i])
			return grant;
	grant.first = first;
	grant.count = 1 << order;
	return grant;
}

static struct grant *new_grant(struct space *space, unsigned long frame, bool writable)
{
	struct grant grant = extent_of(space, frame), *place;
	unsigned long spare = grant.count + REVOKE_BATCH;
	u16 i;

	if (space->issued + grant.count > space->limit)
		revoke_oldest(space, space->limit - min(space->limit, spare));
	if (space->free == space->capacity) {
		if (grant.keep == KEEP_HELD)
			put_page(grant.head);
		return NULL;
	}
	place = space->grants + space->free;
	space->free = place->next;
	grant.writable = writable;
	*place = grant;
	for (i = 0; i < grant.count; i++)
		space->owner[grant.first + i] = place - space->grants + 1;
	space->issued += grant.count;
	if (grant.keep == KEEP_ALLOCATED)
		space->unreferenced++;
	issue(space, place);
	return place;
}

static struct grant *grant_of(struct space *space, unsigned long frame)
{
	u32 owner = space->owner[frame];

	return owner ? space->grants + owner - 1 : NULL;
}

/* Begins a mapping. Returns the bytes of it that have begun. */
static size_t enter(struct space *space, phys_addr_t at, size_t len, bool writable)
{
	unsigned long frame = at >> PAGE_SHIFT, last = (at + len - 1) >> PAGE_SHIFT;

	while (frame <= last) {
		struct grant *grant;

		if (frame >= space->frames)
			goto out;
		grant = grant_of(space, frame);
		if (!grant)
			grant = new_grant(space, frame, writable);
		if (!grant)
			goto out;
		if (writable && !grant->writable) {
			grant->writable = true;
			issue(space, grant);
		}
		grant->active++;
		grant->recent = true;
		frame = grant->first + grant->count;
	}
	return len;
out:
	space->error = -ENOMEM;
	return frame == at >> PAGE_SHIFT ? 0 : (frame << PAGE_SHIFT) - at;
}

/* A mapping is over. */
static void leave(struct space *space, phys_addr_t at, size_t len)
{
	unsigned long frame = at >> PAGE_SHIFT, last = (at + len - 1) >> PAGE_SHIFT;

	while (len && frame <= last) {
		struct grant *grant = grant_of(space, frame);

		if (WARN_ON_ONCE(!grant || !grant->active))
			return;
		frame = grant->first + grant->count;
		if (!--grant->active && !reuse)
			revoke(space, grant);
	}
}

/* What the operation that failed has changed is as it was. */
static void undo(struct space *space)
{
	u32 i;

	for (i = 0; i < space->capacity; i++) {
		struct grant *grant = space->grants + i;

		if (!grant->count || grant->changed != space->operation)
			continue;
		/* Some of its pages may be writable now, which is no news to whoever makes it so again. */
		grant->writable = false;
		if (!grant->active)
			revoke(space, grant);
	}
	do_steps(space);
	space->failures++;
}

static void begin(struct space *space)
{
	space->operation++;
	space->error = 0;
	space->maps++;
}

/* What was begun has been issued when this returns 0. */
static int settle(struct space *space)
{
	if (space->step_count)
		do_steps(space);
	return space->error;
}

static int map_range(struct space *space, phys_addr_t at, size_t len, bool writable)
{
	unsigned long flags;
	size_t begun;
	int error;

	spin_lock_irqsave(&space->lock, flags);
	begin(space);
	begun = enter(space, at, len, writable);
	error = settle(space);
	if (error) {
		leave(space, at, begun);
		undo(space);
	}
	spin_unlock_irqrestore(&space->lock, flags);
	return error;
}

static void unmap_range(struct space *space, phys_addr_t at, size_t len)
{
	unsigned long flags;

	spin_lock_irqsave(&space->lock, flags);
	leave(space, at, len);
	settle(space);
	spin_unlock_irqrestore(&space->lock, flags);
}

/* The space of a device that has our operations. */
static struct space *space_of(struct device *dev)
{
	return container_of(get_dma_ops(dev), struct space, operations);
}

/* A device with regions writes nowhere else, and whoever wants it to is told at once. */
static bool writes_outside(struct device *dev, enum dma_data_direction direction)
{
	return space_of(dev)->regions && direction == DMA_FROM_DEVICE;
}

static dma_addr_t dma_map_page_op(struct device *dev, struct page *page, unsigned long offset,
				  size_t len, enum dma_data_direction direction,
				  unsigned long attributes)
{
	phys_addr_t at = page_to_phys(page) + offset;

	if (!dma_capable(dev, at, len, false) || writes_outside(dev, direction))
		return DMA_MAPPING_ERROR;
	if (map_range(space_of(dev), at, len, direction != DMA_TO_DEVICE))
		return DMA_MAPPING_ERROR;
	return at;
}

static void dma_unmap_page_op(struct device *dev, dma_addr_t at, size_t len,
			      enum dma_data_direction direction, unsigned long attributes)
{
	unmap_range(space_of(dev), at, len);
}

static int dma_map_sg_op(struct device *dev, struct scatterlist *list, int count,
			 enum dma_data_direction direction, unsigned long attributes)
{
	struct space *space = space_of(dev);
	struct scatterlist *part;
	unsigned long flags;
	int i, error;

	for_each_sg(list, part, count, i)
		if (!dma_capable(dev, sg_phys(part), part->length, false))
			return -EIO;
	if (writes_outside(dev, direction))
		return -EIO;
	spin_lock_irqsave(&space->lock, flags);
	begin(space);
	for_each_sg(list, part, count, i) {
		part->dma_address = sg_phys(part);
		sg_dma_len(part) = enter(space, sg_phys(part), part->length,
					 direction != DMA_TO_DEVICE);
		if (sg_dma_len(part) != part->length) {
			count = i + 1;
			break;
		}
	}
	error = settle(space);
	if (error) {
		for_each_sg(list, part, count, i)
			leave(space, sg_phys(part), sg_dma_len(part));
		undo(space);
	}
	spin_unlock_irqrestore(&space->lock, flags);
	return error ?: count;
}

static void dma_unmap_sg_op(struct device *dev, struct scatterlist *list, int count,
			    enum dma_data_direction direction, unsigned long attributes)
{
	struct space *space = space_of(dev);
	struct scatterlist *part;
	unsigned long flags;
	int i;

	spin_lock_irqsave(&space->lock, flags);
	for_each_sg(list, part, count, i)
		leave(space, sg_phys(part), part->length);
	settle(space);
	spin_unlock_irqrestore(&space->lock, flags);
}

/* Whether pages were of a region, and are given back. */
static bool give_back(struct device *dev, struct page *page, size_t len)
{
	typeof(sluice_region_give) *give;
	bool given;

	if (!space_of(dev)->regions)
		return false;
	give = symbol_get(sluice_region_give);
	if (!give)
		return false;
	given = give(page, len);
	symbol_put(sluice_region_give);
	return given;
}

/* Pages of the region of the guest that is served now: NULL if there is none, or an error. */
static struct page *region_pages(struct device *dev, size_t len, dma_addr_t *at)
{
	struct space *space = space_of(dev);
	typeof(sluice_region_take) *take;
	struct page *page;

	if (!space->regions)
		return NULL;
	/* Where nothing is served there is no such module. */
	take = symbol_get(sluice_region_take);
	if (!take)
		return NULL;
	page = take(PCI_SLOT(space->pdev->devfn), len, at);
	symbol_put(sluice_region_take);
	if (!IS_ERR_OR_NULL(page) && !dma_capable(dev, *at, len, false)) {
		dev_warn_once(dev, "does not reach its regions, at %pad\n", at);
		give_back(dev, page, len);
		return ERR_PTR(-EIO);
	}
	return page;
}

static struct page *take_pages(struct device *dev, size_t len, dma_addr_t *at, gfp_t flags,
			       bool writable)
{
	struct page *page = region_pages(dev, len, at);

	if (page)
		return IS_ERR(page) ? NULL : page;
	/* What the device cannot address is of no use to it, whoever issues it. */
	if (dev->coherent_dma_mask <= DMA_BIT_MASK(32))
		flags |= GFP_DMA32;
	page = alloc_pages(flags | __GFP_ZERO | __GFP_COMP, get_order(len));
	if (!page)
		return NULL;
	*at = page_to_phys(page);
	if (map_range(space_of(dev), *at, PAGE_ALIGN(len), writable)) {
		__free_pages(page, get_order(len));
		return NULL;
	}
	return page;
}

static void put_pages(struct device *dev, size_t len, struct page *page, dma_addr_t at)
{
	if (give_back(dev, page, len))
		return;
	unmap_range(space_of(dev), at, PAGE_ALIGN(len));
	__free_pages(page, get_order(len));
}

static void *dma_alloc_op(struct device *dev, size_t len, dma_addr_t *at, gfp_t flags,
			  unsigned long attributes)
{
	struct page *page = take_pages(dev, len, at, flags, true);

	return page ? page_address(page) : NULL;
}

static void dma_free_op(struct device *dev, size_t len, void *memory, dma_addr_t at,
			unsigned long attributes)
{
	put_pages(dev, len, virt_to_page(memory), at);
}

static struct page *dma_alloc_pages_op(struct device *dev, size_t len, dma_addr_t *at,
				       enum dma_data_direction direction, gfp_t flags)
{
	return take_pages(dev, len, at, flags, direction != DMA_TO_DEVICE);
}

static void dma_free_pages_op(struct device *dev, size_t len, struct page *page, dma_addr_t at,
			      enum dma_data_direction direction)
{
	put_pages(dev, len, page, at);
}

/* Shows what was allocated to a program, whose driver asks whether that can be done. */
static int dma_mmap_op(struct device *dev, struct vm_area_struct *vma, void *memory, dma_addr_t at,
		       size_t len, unsigned long attributes)
{
	unsigned long pages = PAGE_ALIGN(len) >> PAGE_SHIFT;

	if (vma->vm_pgoff >= pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -ENXIO;
	return remap_pfn_range(vma, vma->vm_start,
			       page_to_pfn(virt_to_page(memory)) + vma->vm_pgoff,
			       vma_pages(vma) << PAGE_SHIFT, vma->vm_page_prot);
}

/* A device that reaches addresses of fewer bits than there are pages is told when it maps one. */
static int dma_supported_op(struct device *dev, u64 mask)
{
	return 1;
}

static const struct dma_map_ops operations = {
	.alloc = dma_alloc_op,
	.free = dma_free_op,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	.alloc_pages_op = dma_alloc_pages_op,
#else
	.alloc_pages = dma_alloc_pages_op,
#endif
	.free_pages = dma_free_pages_op,
	.mmap = dma_mmap_op,
	.map_page = dma_map_page_op,
	.unmap_page = dma_unmap_page_op,
	.map_sg = dma_map_sg_op,
	.unmap_sg = dma_unmap_sg_op,
	.dma_supported = dma_supported_op,
};

/* Numbers of a device's space, in its folder of sysfs. */
#define COUNTER(name, value)                                                                     \
	static ssize_t name##_show(struct device *dev, struct device_attribute *attr, char *to) \
	{                                                                                        \
		struct space *space = space_of(dev);                                             \
                                                                                                 \
		return sysfs_emit(to, "%llu\n", (u64)(value));                                   \
	}                                                                                        \
	static DEVICE_ATTR_RO(name)

COUNTER(pages_limit, space->limit);
COUNTER(pages_issued, space->issued);
COUNTER(mappings, space->maps);
COUNTER(mappings_failed, space->failures);
COUNTER(hypercalls, space->calls);
COUNTER(issues, space->issues);
COUNTER(revokes, space->revokes);

static struct attribute *counters[] = {
	&dev_attr_pages_limit.attr,
	&dev_attr_pages_issued.attr,
	&dev_attr_mappings.attr,
	&dev_attr_mappings_failed.attr,
	&dev_attr_hypercalls.attr,
	&dev_attr_issues.attr,
	&dev_attr_revokes.attr,
	NULL,
};

static const struct attribute_group counter_group = { .name = "grants", .attrs = counters };

static void space_free(struct space *space)
{
	kvfree(space->owner);
	kvfree(space->grants);
	kfree(space->steps);
	kfree(space);
}

static struct space *space_new(struct pci_dev *pdev, u64 number, unsigned long frames)
{
	struct space *space = kzalloc(sizeof(*space), GFP_KERNEL);
	u32 i;

	if (!space)
		return NULL;
	spin_lock_init(&space->lock);
	space->operations = operations;
	space->pdev = pdev;
	space->number = number;
	space->regions = kvm_hypercall2(SLUICE_REGION_USE, PCI_SLOT(pdev->devfn),
					SLUICE_REGION_NONE) == 0;
	space->frames = frames;
	space->limit = min(pages ?: max(totalram_pages() / 4, 1024ul), frames);
	/* What is mapped is issued, however much that is. */
	space->capacity = 2 * space->limit + 4096;
	space->owner = kvcalloc(frames, sizeof(*space->owner), GFP_KERNEL);
	space->grants = kvcalloc(space->capacity, sizeof(*space->grants), GFP_KERNEL);
	space->steps = kcalloc(SLUICE_GRANT_MAX_BATCH, sizeof(*space->steps), GFP_KERNEL);
	if (!space->owner || !space->grants || !space->steps) {
		space_free(space);
		return NULL;
	}
	for (i = 0; i < space->capacity; i++)
		space->grants[i].next = i + 1;
	return space;
}

/* Gives a device our operations, if this guest issues single pages to it. */
static void take_device(struct pci_dev *pdev)
{
	u64 number = SLUICE_GRANT_DEVICE + PCI_SLOT(pdev->devfn);
	/* Of two functions in a slot the first says only who a device is. */
	unsigned int function = pdev->multifunction ? 1 : 0;
	struct space *space;
	long frames;

	if (pci_domain_nr(pdev->bus) || pdev->bus->number ||
	    PCI_FUNC(pdev->devfn) != function || pdev->dev.dma_ops)
		return;
	frames = kvm_hypercall1(SLUICE_GRANT_OPEN, number);
	if (frames <= 0 || (by_table && table_take(pdev, number, frames)))
		return;
	space = space_new(pdev, number, frames);
	if (!space) {
		pci_err(pdev, "no memory to issue pages\n");
		return;
	}
	if (sysfs_create_group(&pdev->dev.kobj, &counter_group))
		pci_warn(pdev, "its counters are not in sysfs\n");
	__module_get(THIS_MODULE);
	set_dma_ops(&pdev->dev, &space->operations);
	spin_lock(&spaces_lock);
	list_add_rcu(&space->entry, &spaces);
	spin_unlock(&spaces_lock);
	pci_info(pdev, "reaches only pages that are issued to it, up to %lu at rest\n", space->limit);
}

static bool is_taken(struct device *dev)
{
	return dev->dma_ops && dev->dma_ops->map_page == dma_map_page_op;
}

static struct pool *pool_of(const void *user)
{
	u32 i;

	for (i = 0; i < POOLS; i++)
		if (pools[i].user == user)
			return pools + i;
	return NULL;
}

/* A page of the user's that is idle; NULL: there is none. */
static struct page *pool_take(const void *user)
{
	struct page *page = NULL;
	struct pool *pool;
	unsigned long flags;
	u32 looked;

	spin_lock_irqsave(&pools_lock, flags);
	pool = pool_of(user);
	for (looked = 0; pool && looked < min_t(u32, POOL_LOOK, pool->count) && !page; looked++) {
		if (++pool->hand >= pool->count)
			pool->hand = 0;
		if (page_ref_count(pool->pages[pool->hand]) == 1) {
			page = pool->pages[pool->hand];
			get_page(page);
		}
	}
	spin_unlock_irqrestore(&pools_lock, flags);
	return page;
}

/* Whoever has a page to himself shares it with his pool, if that is not full. */
static void pool_add(const void *user, struct page *page)
{
	struct pool *pool;
	unsigned long flags;

	spin_lock_irqsave(&pools_lock, flags);
	pool = pool_of(user) ?: pool_of(NULL);
	if (pool && pool->count < min_t(u32, pooled, POOL_MOST) && !page_is_pfmemalloc(page)) {
		pool->user = user;
		get_page(page);
		page->index = (unsigned long)pool;
		pool->pages[pool->count++] = page;
	}
	spin_unlock_irqrestore(&pools_lock, flags);
}

/* A user that begins is none that was there before at the same address. */
static void pool_abandon(const void *user)
{
	struct pool *pool;
	unsigned long flags;

	spin_lock_irqsave(&pools_lock, flags);
	pool = pool_of(user);
	if (pool)
		pool->user = pool;
	spin_unlock_irqrestore(&pools_lock, flags);
}

/* Takes a page out of a pool. */
static struct page *pool_remove(struct pool *pool, u32 index)
{
	struct page *page = pool->pages[index];

	pool->pages[index] = pool->pages[--pool->count];
	if (!pool->count)
		pool->user = NULL;
	return page;
}

/* Lets go of an idle page that was in a pool, when no device reaches it any more. */
static void pool_release(struct page *page)
{
	struct space *space;
	unsigned long flags;

	spin_lock(&spaces_lock);
	list_for_each_entry(space, &spaces, entry) {
		struct grant *grant;

		spin_lock_irqsave(&space->lock, flags);
		grant = grant_of(space, page_to_pfn(page));
		if (grant)
			revoke(space, grant);
		settle(space);
		spin_unlock_irqrestore(&space->lock, flags);
	}
	spin_unlock(&spaces_lock);
	page->index = 0;
	page_ref_unfreeze(page, 1);
	put_page(page);
}

/* Has pools let go of idle pages until so many frames are free, or there are no more. Returns their number. */
static unsigned long pools_shrink(unsigned long wanted)
{
	unsigned long freed = 0;
	struct page *page;

	do {
		unsigned long flags;
		u32 i, k;

		page = NULL;
		spin_lock_irqsave(&pools_lock, flags);
		for (i = 0; i < POOLS && !page; i++)
			for (k = 0; k < pools[i].count && !page; k++)
				if (page_ref_freeze(pools[i].pages[k], 1))
					page = pool_remove(pools + i, k);
		spin_unlock_irqrestore(&pools_lock, flags);
		if (page) {
			pool_release(page);
			freed += 1 << WHOLE_ORDER;
		}
	} while (page && freed < wanted);
	return freed;
}

/* A page for fragments, of the user's pool or for it; without a user, of no pool. */
static bool refill(unsigned int len, struct page_frag *fragment, gfp_t flags, const void *user)
{
	struct page *page = fragment->page;

	if (page) {
		struct pool *pool = pool_with(page);

		if (page_ref_count(page) == 1 + !!pool)
			fragment->offset = 0;
		/* What is not for a device is in no page of its pool. */
		if (fragment->offset + len <= fragment->size && (!pool || pool->user == user))
			return true;
		put_page(page);
	}
	fragment->offset = 0;
	fragment->size = PAGE_SIZE << WHOLE_ORDER;
	page = user ? pool_take(user) : NULL;
	if (!page) {
		page = alloc_pages((flags & ~__GFP_DIRECT_RECLAIM) | __GFP_COMP | __GFP_NOWARN |
				   __GFP_NORETRY, WHOLE_ORDER);
		if (page && user)
			pool_add(user, page);
	}
	if (!page) {
		fragment->size = PAGE_SIZE;
		page = alloc_page(flags);
	}
	fragment->page = page;
	return page && len <= fragment->size;
}

/* The space of the device by which a socket's packets leave, if it has one. */
static const void *space_of_socket(struct sock *sk)
{
	const void *space = NULL;
	struct dst_entry *dst;

	rcu_read_lock();
	dst = rcu_dereference(sk->sk_dst_cache);
	if (dst) {
		struct device *dev = READ_ONCE(dst->dev)->dev.parent;

		/* The card is a virtio device, which is a device of a PCI function. */
		if (dev && dev->parent && is_taken(dev->parent))
			space = space_of(dev->parent);
	}
	rcu_read_unlock();
	return space;
}

/* In place of the kernel's functions (net/core/sock.c): they see to it that a fragment has room. */
static bool refill_receive(unsigned int len, struct page_frag *fragment, gfp_t flags)
{
	if (!fragment->page)
		pool_abandon(fragment);
	return refill(len, fragment, flags, fragment);
}

static bool refill_socket(struct sock *sk, struct page_frag *fragment)
{
	if (refill(32, fragment, sk->sk_allocation, space_of_socket(sk)))
		return true;
	if (sk->sk_prot->enter_memory_pressure)
		sk->sk_prot->enter_memory_pressure(sk);
	sk_stream_moderate_sndbuf(sk);
	return false;
}

static struct klp_func replaced[] = {
	{ .old_name = "skb_page_frag_refill", .new_func = refill_receive },
	{ .old_name = "sk_page_frag_refill", .new_func = refill_socket },
	{ }
};

static struct klp_object objects[] = {
	{ .funcs = replaced }, /* of the kernel itself */
	{ }
};

static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

/* A device is gone, with all that was issued to it. */
static void lose_device(struct pci_dev *pdev)
{
	struct space *space = NULL, *each;
	u32 i;

	spin_lock(&spaces_lock);
	list_for_each_entry(each, &spaces, entry)
		if (each->pdev == pdev)
			space = each;
	if (space)
		list_del_rcu(&space->entry);
	spin_unlock(&spaces_lock);
	if (!space) {
		if (table_is_taken(&pdev->dev))
			table_lose(pdev);
		return;
	}
	synchronize_rcu();
	pool_abandon(space);
	sysfs_remove_group(&pdev->dev.kobj, &counter_group);
	set_dma_ops(&pdev->dev, NULL);
	spin_lock_irq(&space->lock);
	for (i = 0; i < space->capacity; i++)
		if (space->grants[i].count)
			revoke(space, space->grants + i);
	do_steps(space);
	spin_unlock_irq(&space->lock);
	space_free(space);
	module_put(THIS_MODULE);
}

/*
 * A block of pages is about to be free (tracepoint mm_page_free). Those that have references
 * of ours are not free before they are revoked; others are revoked here.
 */
static void page_freed(void *unused, struct page *page, unsigned int order)
{
	unsigned long first = page_to_pfn(page), frame;
	struct space *space;
	unsigned long flags;

	if (this_cpu_read(releasing))
		return;
	rcu_read_lock();
	list_for_each_entry_rcu(space, &spaces, entry) {
		if (!READ_ONCE(space->unreferenced))
			continue;
		spin_lock_irqsave(&space->lock, flags);
		for (frame = first; frame < first + (1UL << order) && frame < space->frames; frame++) {
			struct grant *grant = grant_of(space, frame);

			if (grant && grant->keep == KEEP_ALLOCATED && !WARN_ON_ONCE(grant->active))
				revoke(space, grant);
		}
		settle(space);
		spin_unlock_irqrestore(&space->lock, flags);
	}
	rcu_read_unlock();
}

static void find_page_free(struct tracepoint *tracepoint, void *found)
{
	if (!strcmp(tracepoint->name, "mm_page_free"))
		*(struct tracepoint **)found = tracepoint;
}

static struct tracepoint *page_free;

static int watch_frees(void)
{
	for_each_kernel_tracepoint(find_page_free, &page_free);
	return page_free ? tracepoint_probe_register(page_free, page_freed, NULL) : -ENOENT;
}

static void watch_frees_no_more(void)
{
	tracepoint_probe_unregister(page_free, page_freed, NULL);
	tracepoint_synchronize_unregister();
}

static int device_event(struct notifier_block *block, unsigned long event, void *device)
{
	struct pci_dev *pdev = to_pci_dev(device);

	if (event == BUS_NOTIFY_ADD_DEVICE)
		take_device(pdev);
	else if (event == BUS_NOTIFY_REMOVED_DEVICE)
		lose_device(pdev);
	return NOTIFY_DONE;
}

static struct notifier_block device_events = { .notifier_call = device_event };

static unsigned long shrink_count(struct shrinker *shrinker, struct shrink_control *control)
{
	unsigned long count = 0;
	struct space *space;

	if (!spin_trylock(&spaces_lock))
		return 0;
	list_for_each_entry(space, &spaces, entry)
		count += READ_ONCE(space->issued);
	spin_unlock(&spaces_lock);
	return count ?: SHRINK_EMPTY;
}

static unsigned long shrink_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	unsigned long freed = 0, left = control->nr_to_scan;
	struct space *space;

	if (!spin_trylock(&spaces_lock))
		return SHRINK_STOP;
	list_for_each_entry(space, &spaces, entry) {
		unsigned long before, flags;

		if (freed >= left)
			break;
		spin_lock_irqsave(&space->lock, flags);
		before = space->issued;
		revoke_oldest(space, before - min(before, left - freed));
		settle(space);
		freed += before - space->issued;
		spin_unlock_irqrestore(&space->lock, flags);
	}
	spin_unlock(&spaces_lock);
	if (freed < left)
		freed += pools_shrink(left - freed);
	return freed ?: SHRINK_STOP;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 7, 0)
static struct shrinker *shrinker;

static int shrinker_begin(void)
{
	shrinker = shrinker_alloc(0, KBUILD_MODNAME);
	if (!shrinker)
		return -ENOMEM;
	shrinker->count_objects = shrink_count;
	shrinker->scan_objects = shrink_scan;
	shrinker_register(shrinker);
	return 0;
}

static void shrinker_end(void)
{
	shrinker_free(shrinker);
}
#else
static struct shrinker shrinker = {
	.count_objects = shrink_count,
	.scan_objects = shrink_scan,
	.seeks = DEFAULT_SEEKS,
};

static int shrinker_begin(void)
{
	return register_shrinker(&shrinker, KBUILD_MODNAME);
}

static void shrinker_end(void)
{
	unregister_shrinker(&shrinker);
}
#endif

/* A driver that was refused, as nothing was issued, tries again. */
static int try_again(struct device *dev, void *unused)
{
	return device_attach(dev) < 0;
}

static int __init dma_init(void)
{
	struct pci_dev *pdev = NULL;
	int error;

	/* Elsewhere a call is an illegal instruction. */
	if (!kvm_para_available())
		return -ENODEV;

	error = watch_frees();
	if (error)
		return error;
	error = shrinker_begin();
	if (error)
		goto no_shrinker;
	error = bus_register_notifier(&pci_bus_type, &device_events);
	if (error)
		goto no_notifier;
	for_each_pci_dev(pdev) {
		take_device(pdev);
		if (is_taken(&pdev->dev) || table_is_taken(&pdev->dev))
			device_for_each_child(&pdev->dev, NULL, try_again);
	}
	if (pooled && reuse && !list_empty(&spaces) && klp_enable_patch(&patch))
		pr_warn("network buffers come from new pages all the time\n");
	return 0;

no_notifier:
	shrinker_end();
no_shrinker:
	watch_frees_no_more();
	return error;
}

/* No device is ours any more: each holds the module. */
static void __exit dma_exit(void)
{
	bus_unregister_notifier(&pci_bus_type, &device_events);
	shrinker_end();
	watch_frees_no_more();
}

module_init(dma_init);
module_exit(dma_exit);
MODULE_DESCRIPTION("Issues pages to the devices of a Sluice guest");
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
