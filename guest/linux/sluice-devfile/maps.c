// SPDX-License-Identifier: GPL-2.0-only
/*
 * What programs map of a file: pages of the other domain, in memory of the device
 * (virtio shared memory) of which this side says what is free.
 */
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "devfile.h"

/* Pages that one fault maps: programs look at neighbouring ones soon. */
#define PAGES_PER_FAULT 16

/* A part of a file that a process, and those that it forks, have mapped. */
struct region {
	struct kref users; /* areas of memory */
	struct open_file *file; /* which such an area keeps open */
	u64 space;
	u64 start; /* of the file, in pages */
	u32 first, pages; /* of the device's memory of maps */
};

/* Whether the other side may show a region yet. */
static bool is_shown(const struct region *region)
{
	const struct mirror *mirror = region->file->mirror;

	return READ_ONCE(mirror->life) == region->file->life &&
	       test_bit(region->first, mirror->maps_used);
}

static void region_free(struct kref *users)
{
	struct region *region = container_of(users, struct region, users);
	struct mirror *mirror = region->file->mirror;
	struct slot *slot = NULL;

	/* Pages that cannot be given back now are until the device's next life. */
	wait_event_timeout(mirror->free,
			   (slot = take_slot(mirror, false)) ||
				   READ_ONCE(mirror->life) !=
					   region->file->life,
			   msecs_to_jiffies(patience_ms));
	if (slot) {
		slot->first = region->first;
		slot->freed = region->pages;
		reach_nothing(slot);
		slot->request->operation = cpu_to_le32(SLUICE_DEVFILE_UNMAP);
		slot->request->tag = cpu_to_le32(tag_of(mirror, slot));
		slot->request->space = cpu_to_le64(region->space);
		slot->request->file = cpu_to_le32(region->file->number);
		slot->request->arguments[0] = cpu_to_le64(region->first);
		if (submit(mirror, slot, SLOT_ALONE, region->file->life)) {
			frees_nothing(slot);
			free_slot(mirror, slot);
		} else if (!(current->flags & PF_EXITING)) {
			/*
			 * Drivers refuse what a program asks next while it has a
			 * part mapped. One that ends asks nothing, and is not kept
			 * by a domain that hangs.
			 */
			wait_event_killable_timeout(
				mirror->free, !is_shown(region),
				msecs_to_jiffies(patience_ms));
		}
	}
	kfree(region);
}

static void region_open(struct vm_area_struct *vma)
{
	struct region *region = vma->vm_private_data;

	kref_get(&region->users);
}

static void region_close(struct vm_area_struct *vma)
{
	struct region *region = vma->vm_private_data;

	kref_put(&region->users, region_free);
}

static vm_fault_t region_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct region *region = vma->vm_private_data;
	struct mirror *mirror = region->file->mirror;
	unsigned long address = vmf->address & PAGE_MASK;
	u64 page = vmf->pgoff - region->start;
	vm_fault_t result = VM_FAULT_SIGBUS;
	u32 i;

	down_read(&mirror->maps_lock);
	for (i = 0; i < PAGES_PER_FAULT; i++) {
		vm_fault_t inserted;

		if (page + i >= region->pages || address >= vma->vm_end ||
		    READ_ONCE(mirror->life) != region->file->life)
			break;
		inserted = vmf_insert_pfn(
			vma, address,
			PHYS_PFN(mirror->maps.addr) + region->first + page + i);
		if (!i)
			result = inserted;
		if (inserted != VM_FAULT_NOPAGE)
			break;
		address += PAGE_SIZE;
	}
	up_read(&mirror->maps_lock);
	return result;
}

static const struct vm_operations_struct region_operations = {
	.open = region_open,
	.close = region_close,
	.fault = region_fault,
};

/* Takes pages of the device's memory of maps. */
static bool take_pages(struct mirror *mirror, struct region *region)
{
	unsigned long first, flags;

	spin_lock_irqsave(&mirror->lock, flags);
	first = bitmap_find_next_zero_area(mirror->maps_used, MAP_PAGES, 0,
					   region->pages, 0);
	if (first < MAP_PAGES)
		bitmap_set(mirror->maps_used, first, region->pages);
	spin_unlock_irqrestore(&mirror->lock, flags);
	region->first = first;
	return first < MAP_PAGES;
}

static void give_pages(struct mirror *mirror, struct region *region)
{
	unsigned long flags;

	spin_lock_irqsave(&mirror->lock, flags);
	if (mirror->life == region->file->life)
		bitmap_clear(mirror->maps_used, region->first, region->pages);
	spin_unlock_irqrestore(&mirror->lock, flags);
}

/* The other domain maps the same, and shows it in these pages. */
int devfile_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct open_file *open = file->private_data;
	struct mirror *mirror = open->mirror;
	struct region *region;
	struct slot *slot;
	u32 rights = 0;
	s64 result;

	if (!mirror->maps.len)
		return -ENODEV;
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma_pages(vma) > MAP_PAGES)
		return -ENOMEM;
	if (vma->vm_flags & VM_READ)
		rights |= SLUICE_DEVFILE_MAPS_READ;
	if (vma->vm_flags & VM_WRITE)
		rights |= SLUICE_DEVFILE_MAPS_WRITE;
	region = kzalloc(sizeof(*region), GFP_KERNEL);
	if (!region)
		return -ENOMEM;
	kref_init(&region->users);
	region->file = open;
	region->start = vma->vm_pgoff;
	region->pages = vma_pages(vma);
	slot = begin(open, SLUICE_DEVFILE_MAP, file->f_flags);
	if (IS_ERR(slot)) {
		kfree(region);
		return PTR_ERR(slot);
	}
	if (!take_pages(mirror, region)) {
		free_slot(mirror, slot);
		kfree(region);
		return -ENOMEM;
	}
	region->space = le64_to_cpu(slot->request->space);
	slot->request->arguments[0] =
		cpu_to_le64((u64)vma->vm_pgoff << PAGE_SHIFT);
	slot->request->arguments[1] =
		cpu_to_le64((u64)region->pages << PAGE_SHIFT);
	slot->request->arguments[2] =
		cpu_to_le64(region->first | (u64)rights << 32);
	result = plausible(operate(mirror, slot, false, open->life, false), 0);
	if (result) {
		/* Without an answer it may be mapped yet: the pages are not used again. */
		if (result != -EIO && result != -EINTR &&
		    result != -ERESTARTSYS)
			give_pages(mirror, region);
		kfree(region);
		return result == -ERESTARTSYS ? -EINTR : result;
	}
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, VM_PFNMAP | VM_DONTDUMP | VM_DONTEXPAND);
	if (!(vma->vm_flags & VM_WRITE))
		vm_flags_clear(vma, VM_MAYWRITE);
#else
	vma->vm_flags |= VM_PFNMAP | VM_DONTDUMP | VM_DONTEXPAND;
	if (!(vma->vm_flags & VM_WRITE))
		vma->vm_flags &= ~VM_MAYWRITE;
#endif
	vma->vm_ops = &region_operations;
	vma->vm_private_data = region;
	return 0;
}

/* No process has a page of the device's mapped any more, or maps one anew. */
void forget_maps(struct mirror *mirror)
{
	struct open_file *file;

	/* Who has seen the life go on has inserted its pages when this is over. */
	down_write(&mirror->maps_lock);
	up_write(&mirror->maps_lock);
	mutex_lock(&mirror->opens_lock);
	list_for_each_entry(file, &mirror->opens, entry)
		unmap_mapping_range(file->mapping, 0, 0, 1);
	mutex_unlock(&mirror->opens_lock);
}
