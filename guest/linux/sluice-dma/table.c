// SPDX-License-Identifier: GPL-2.0-only
/*
 * DMA operations of virtio devices whose pages are lent by a table, the older way,
 * which is there to be compared with dma.c.
 *
 * Each mapping takes references that follow each other, and writes their entries: a DMA
 * address is the number of a reference, and a place in the page. Who serves the device has the pages
 * mapped or copied for each use, and says when it is over; the entries are ended
 * when the mapping is. A page that is in use then, against what virtio says, is never
 * free again, and nor is its reference.
 *
 * Source: Ram, Santos and Turner, "Redesigning Xen's Memory Sharing Mechanism for
 * Safe and Efficient I/O Virtualization", 2.1.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/bitmap.h>
#include <linux/dma-map-ops.h>
#include <linux/kvm_para.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/sysfs.h>
#include <linux/version.h>

#include "sluice.h"
#include "table.h"

struct table {
	struct dma_map_ops operations; /* of its device, which finds it by them */
	u64 *entries;
	unsigned long references;

	spinlock_t lock; /* which are taken */
	unsigned long *taken;
	unsigned long next; /* where free ones are looked for first */

	atomic64_t mappings;
	atomic64_t pages_kept; /* in use when their mapping ended */
};

static struct table *table_of(struct device *dev)
{
	return container_of(get_dma_ops(dev), struct table, operations);
}

/* Takes references that follow each other. Returns the first; `references` of the table: there are not so many. */
static unsigned long take(struct table *table, unsigned long count)
{
	unsigned long flags, first;

	spin_lock_irqsave(&table->lock, flags);
	first = bitmap_find_next_zero_area(table->taken, table->references, table->next, count, 0);
	if (first >= table->references)
		first = bitmap_find_next_zero_area(table->taken, table->references, 0, count, 0);
	if (first < table->references) {
		bitmap_set(table->taken, first, count);
		table->next = first + count;
	} else {
		first = table->references;
	}
	spin_unlock_irqrestore(&table->lock, flags);
	return first;
}

static void give(struct table *table, unsigned long first, unsigned long count)
{
	unsigned long flags;

	spin_lock_irqsave(&table->lock, flags);
	bitmap_clear(table->taken, first, count);
	spin_unlock_irqrestore(&table->lock, flags);
}

static unsigned long pages_of(phys_addr_t at, size_t len)
{
	return PFN_UP(offset_in_page(at) + len);
}

/* Numbers of a table, in its device's folder of sysfs. */
#define COUNTER(name)                                                                             \
	static ssize_t name##_show(struct device *dev, struct device_attribute *attr, char *to)  \
	{                                                                                         \
		return sysfs_emit(to, "%lld\n", atomic64_read(&table_of(dev)->name));            \
	}                                                                                         \
	static DEVICE_ATTR_RO(name)

COUNTER(mappings);
COUNTER(pages_kept);

static struct attribute *counters[] = {
	&dev_attr_mappings.attr,
	&dev_attr_pages_kept.attr,
	NULL,
};

static const struct attribute_group counter_group = { .name = "grants", .attrs = counters };

static dma_addr_t map(struct device *dev, phys_addr_t at, size_t len, bool writable)
{
	struct table *table = table_of(dev);
	u64 rights = SLUICE_TABLE_PERMIT | (writable ? 0 : SLUICE_TABLE_READ_ONLY);
	unsigned long count = pages_of(at, len), first = take(table, count), i;

	if (first == table->references)
		return DMA_MAPPING_ERROR;
	atomic64_inc(&table->mappings);
	for (i = 0; i < count; i++)
		WRITE_ONCE(table->entries[first + i], ((at & PAGE_MASK) + (i << PAGE_SHIFT)) | rights);
	/* What is told to the device of it comes after a barrier of virtio's. */
	return (first << PAGE_SHIFT) + offset_in_page(at);
}

/* Ends the grant of a reference. Whether nobody uses it. */
static bool end(struct table *table, unsigned long reference)
{
	u64 *entry = table->entries + reference, old = READ_ONCE(*entry);

	while (!(old & SLUICE_TABLE_USED))
		if (try_cmpxchg64(entry, &old, 0))
			return true;
	get_page(pfn_to_page(PHYS_PFN(old)));
	atomic64_inc(&table->pages_kept);
	pr_warn_once("who serves a device still uses a page of a request that is over\n");
	return false;
}

static void unmap(struct device *dev, dma_addr_t at, size_t len)
{
	struct table *table = table_of(dev);
	unsigned long first = at >> PAGE_SHIFT, count = pages_of(at, len), i;
	bool all = true;

	for (i = 0; i < count; i++)
		all &= end(table, first + i);
	if (all)
		give(table, first, count);
}

static dma_addr_t map_page_op(struct device *dev, struct page *page, unsigned long offset, size_t len,
			      enum dma_data_direction direction, unsigned long attributes)
{
	return map(dev, page_to_phys(page) + offset, len, direction != DMA_TO_DEVICE);
}

static void unmap_page_op(struct device *dev, dma_addr_t at, size_t len,
			  enum dma_data_direction direction, unsigned long attributes)
{
	unmap(dev, at, len);
}

static void unmap_sg_op(struct device *dev, struct scatterlist *list, int count,
			enum dma_data_direction direction, unsigned long attributes)
{
	struct scatterlist *part;
	int i;

	for_each_sg(list, part, count, i)
		unmap(dev, part->dma_address, sg_dma_len(part));
}

static int map_sg_op(struct device *dev, struct scatterlist *list, int count,
		     enum dma_data_direction direction, unsigned long attributes)
{
	struct scatterlist *part;
	int i;

	for_each_sg(list, part, count, i) {
		part->dma_address = map(dev, sg_phys(part), part->length,
					direction != DMA_TO_DEVICE);
		if (part->dma_address == DMA_MAPPING_ERROR) {
			unmap_sg_op(dev, list, i, direction, attributes);
			return -ENOMEM;
		}
		sg_dma_len(part) = part->length;
	}
	return count;
}

static struct page *alloc_pages_op(struct device *dev, size_t len, dma_addr_t *at,
				   enum dma_data_direction direction, gfp_t flags)
{
	struct page *page = alloc_pages(flags | __GFP_ZERO, get_order(len));

	if (!page)
		return NULL;
	*at = map(dev, page_to_phys(page), PAGE_ALIGN(len), direction != DMA_TO_DEVICE);
	if (*at == DMA_MAPPING_ERROR) {
		__free_pages(page, get_order(len));
		return NULL;
	}
	return page;
}

static void free_pages_op(struct device *dev, size_t len, struct page *page, dma_addr_t at,
			  enum dma_data_direction direction)
{
	unmap(dev, at, PAGE_ALIGN(len));
	__free_pages(page, get_order(len));
}

static void *alloc_op(struct device *dev, size_t len, dma_addr_t *at, gfp_t flags,
		      unsigned long attributes)
{
	struct page *page = alloc_pages_op(dev, len, at, DMA_BIDIRECTIONAL, flags);

	return page ? page_address(page) : NULL;
}

static void free_op(struct device *dev, size_t len, void *memory, dma_addr_t at,
		    unsigned long attributes)
{
	free_pages_op(dev, len, virt_to_page(memory), at, DMA_BIDIRECTIONAL);
}

static int supported_op(struct device *dev, u64 mask)
{
	return 1;
}

static const struct dma_map_ops operations = {
	.alloc = alloc_op,
	.free = free_op,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	.alloc_pages_op = alloc_pages_op,
#else
	.alloc_pages = alloc_pages_op,
#endif
	.free_pages = free_pages_op,
	.map_page = map_page_op,
	.unmap_page = unmap_page_op,
	.map_sg = map_sg_op,
	.unmap_sg = unmap_sg_op,
	.dma_supported = supported_op,
};

static void table_free(struct table *table)
{
	if (table->entries)
		free_pages_exact(table->entries, table->references * sizeof(u64));
	bitmap_free(table->taken);
	kfree(table);
}

bool table_take(struct pci_dev *pdev, u64 space, unsigned long references)
{
	struct table *table = kzalloc(sizeof(*table), GFP_KERNEL);

	if (!table)
		return false;
	spin_lock_init(&table->lock);
	table->operations = operations;
	table->references = references;
	table->entries = alloc_pages_exact(references * sizeof(u64), GFP_KERNEL | __GFP_ZERO);
	table->taken = bitmap_zalloc(references, GFP_KERNEL);
	if (!table->entries || !table->taken ||
	    kvm_hypercall2(SLUICE_TABLE_LEND, space, virt_to_phys(table->entries)) <= 0) {
		pci_err(pdev, "pages cannot be lent by a table\n");
		table_free(table);
		return false;
	}
	if (sysfs_create_group(&pdev->dev.kobj, &counter_group))
		pci_warn(pdev, "its counters are not in sysfs\n");
	__module_get(THIS_MODULE);
	set_dma_ops(&pdev->dev, &table->operations);
	pci_info(pdev, "is lent pages by a table of %lu references\n", references);
	return true;
}

bool table_is_taken(struct device *dev)
{
	return dev->dma_ops && dev->dma_ops->map_page == map_page_op;
}

void table_lose(struct pci_dev *pdev)
{
	struct table *table = table_of(&pdev->dev);

	sysfs_remove_group(&pdev->dev.kobj, &counter_group);
	set_dma_ops(&pdev->dev, NULL);
	table_free(table);
	module_put(THIS_MODULE);
}
