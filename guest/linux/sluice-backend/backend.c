// SPDX-License-Identifier: GPL-2.0-only
/*
 * Back-end functions of the Sluice hypervisor: a guest's virtio device, as the
 * domain that serves it sees it.
 *
 * Each function becomes /dev/sluice/GUEST.DEVICE (sluice_backend.h). The window
 * on the guest's memory gets struct pages, so that O_DIRECT and vhost take it.
 * A queue's message signals an eventfd; an eventfd has the guest told by a
 * hypercall. No data pass through the module. What is mapped of a device file is
 * issued to the guest page by page, for as long as it is mapped here.
 *
 * Locks: names_lock; backend->lock (calls of the program, and removal), then
 * backend->window_lock (page faults against removal) and backend->maps_lock
 * (innermost: grants against mappings that change). What interrupts and wake-ups use
 * changes only while its interrupt is free, or its wait queue entry removed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/compat.h>
#include <linux/delay.h>
#include <linux/eventfd.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/kvm_para.h>
#include <linux/magic.h>
#include <linux/list.h>
#include <linux/memremap.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/rwsem.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/uaccess.h>
#include <linux/version.h>

#include "region.h"
#include "sluice.h"
#include "sluice_backend.h"

static_assert(SLUICE_BACKEND_NAME_SIZE == SLUICE_NAME_SIZE);
static_assert(SLUICE_BACKEND_SOURCE_SIZE == SLUICE_SOURCE_SIZE);
static_assert(SLUICE_BACKEND_CONFIG_SIZE == SLUICE_CONFIG_SIZE);
static_assert(SLUICE_BACKEND_RANGE_COUNT == SLUICE_MAX_RANGES);
static_assert(SLUICE_BACKEND_QUEUE_COUNT == SLUICE_MAX_QUEUES);

/* Alignment that a window needs to get struct pages. */
#define WINDOW_ALIGN (PAGES_PER_SUBSECTION * PAGE_SIZE)
/* Pages that one fault maps: software reads neighbouring ones soon. */
#define PAGES_PER_FAULT 16
/* Pages of a map that are issued at once. */
#define PAGES_PER_ISSUE 128
/* How often that is tried while the mapping changes. */
#define ISSUE_TRIES 100

struct backend;
static const struct file_operations backend_operations;

/* A message, and the eventfd that it signals while its interrupt is requested. */
struct message {
	struct eventfd_ctx *event;
};

/* An eventfd whose signal becomes a notification of the guest. */
struct call {
	struct backend *backend;
	struct eventfd_ctx *event; /* NULL: there is none */
	u32 queue;
	wait_queue_entry_t wait;
	poll_table table;
};

/* Pages of a program that the guest sees as a map of a device file. */
struct map {
	struct list_head entry; /* in backend->maps */
	struct mmu_interval_notifier notifier;
	struct backend *backend;
	u64 local;
	u32 first, pages;
	bool write;
	bool released; /* its program has ended */
	unsigned long *issued; /* backend->maps_lock */
};

/* An entry of a list of grants (crates/hypercall, grant.rs). */
struct grant {
	u64 what, page;
};

struct backend {
	struct kref users; /* the function, and its open file */
	struct list_head entry; /* in backends */
	char name[SLUICE_NAME_SIZE];
	char misc_name[SLUICE_NAME_SIZE + 8];
	char node_name[SLUICE_NAME_SIZE + 8];
	struct miscdevice misc;

	struct mutex lock;
	struct pci_dev *pdev; /* NULL: the function is gone */
	void __iomem *registers;
	bool open;
	struct message messages[SLUICE_VECTORS];
	struct call calls[SLUICE_MAX_QUEUES];
	u32 slot;

	struct rw_semaphore window_lock;
	bool window_gone;
	struct page *sink; /* what the mapping shows then */
	void *bounce; /* for copies; NULL: there has been none */
	void *room; /* that its program has mapped; NULL: it has not asked for it */
	void *list; /* for references to map; likewise */
	unsigned long *mapped; /* references that the open file has mapped; likewise */
	struct address_space *mapping; /* of the open file */
	struct dev_pagemap pagemap;
	u64 window_size;

	struct list_head maps;
	u32 map_count;
	spinlock_t maps_lock;
	bool maps_gone; /* nothing can be granted any more */

	struct region *region; /* NULL: there is none */
};

static LIST_HEAD(backends);
static DEFINE_MUTEX(names_lock); /* backends */

static void backend_free(struct kref *users)
{
	struct backend *backend = container_of(users, struct backend, users);

	if (backend->sink)
		__free_page(backend->sink);
	if (backend->bounce)
		free_pages_exact(backend->bounce, SLUICE_DEVFILE_MAX_COPY);
	if (backend->room)
		free_pages_exact(backend->room, SLUICE_BACKEND_ROOM_SIZE);
	free_page((unsigned long)backend->list);
	kvfree(backend->mapped);
	kfree(backend);
}

static u32 get32(struct backend *backend, u32 offset)
{
	return ioread32(backend->registers + offset);
}

static u64 get64(struct backend *backend, u32 offset)
{
	return get32(backend, offset) | (u64)get32(backend, offset + 4) << 32;
}

static void put32(struct backend *backend, u32 offset, u32 value)
{
	iowrite32(value, backend->registers + offset);
}

static void get_bytes(struct backend *backend, u32 offset, void *to, size_t len)
{
	u8 *bytes = to;
	size_t i;

	for (i = 0; i < len; i += 4) {
		__le32 word = cpu_to_le32(get32(backend, offset + i));

		memcpy(bytes + i, &word, min_t(size_t, 4, len - i));
	}
}

static void put_config(struct backend *backend, const u8 *bytes, u32 len)
{
	u32 i;

	for (i = 0; i < len; i += 4) {
		__le32 word = 0;

		memcpy(&word, bytes + i, min_t(u32, 4, len - i));
		put32(backend, SLUICE_CONFIG + i, le32_to_cpu(word));
	}
}

/* Gives a command, and tells what came of it. */
static int command(struct backend *backend, u32 number)
{
	put32(backend, SLUICE_CONTROL, number);
	switch (get32(backend, SLUICE_CONTROL)) {
	case 0:
		return 0;
	case SLUICE_REFUSED_COMMAND:
		return -EPROTO;
	case SLUICE_REFUSED_RANGE:
		return -ERANGE;
	case SLUICE_REFUSED_FEATURES:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

/* The window. */

/* Another thread's fault may have mapped the page: that will do. */
static int insert_page(struct vm_area_struct *vma, unsigned long address,
		       struct page *page)
{
	int error = vm_insert_page(vma, address, page);

	return error == -EBUSY ? 0 : error;
}

static vm_fault_t window_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct backend *backend = vma->vm_private_data;
	u64 pages = backend->window_size >> PAGE_SHIFT;
	unsigned long address = vmf->address & PAGE_MASK;
	unsigned long pfn;
	int error, i;

	if (vmf->pgoff >= pages)
		return VM_FAULT_SIGBUS;
	down_read(&backend->window_lock);
	if (backend->window_gone) {
		error = insert_page(vma, address, backend->sink);
		goto out;
	}
	pfn = PHYS_PFN(backend->pagemap.range.start) + vmf->pgoff;
	error = insert_page(vma, address, pfn_to_page(pfn));
	for (i = 1; i < PAGES_PER_FAULT && !error; i++) {
		address += PAGE_SIZE;
		if (address >= vma->vm_end || vmf->pgoff + i >= pages ||
		    insert_page(vma, address, pfn_to_page(pfn + i)))
			break;
	}
out:
	up_read(&backend->window_lock);
	return error ? vmf_error(error) : VM_FAULT_NOPAGE;
}

static const struct vm_operations_struct window_operations = {
	.fault = window_fault,
};

/*
 * Memory that follows each other, for what is copied. It stays until the last mapping is gone. The
 * lock is not for here: it is held while memory of the program is read.
 */
static int map_room(struct backend *backend, struct vm_area_struct *vma)
{
	void *room = READ_ONCE(backend->room), *other;

	if (vma->vm_end - vma->vm_start != SLUICE_BACKEND_ROOM_SIZE)
		return -EINVAL;
	if (!room) {
		room = alloc_pages_exact(SLUICE_BACKEND_ROOM_SIZE, GFP_KERNEL | __GFP_ZERO);
		if (!room)
			return -ENOMEM;
		other = cmpxchg(&backend->room, NULL, room);
		if (other) {
			free_pages_exact(room, SLUICE_BACKEND_ROOM_SIZE);
			room = other;
		}
	}
	return remap_pfn_range(vma, vma->vm_start, PHYS_PFN(virt_to_phys(room)),
			       SLUICE_BACKEND_ROOM_SIZE, vma->vm_page_prot);
}

static int backend_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct backend *backend = file->private_data;
	u64 pages = backend->window_size >> PAGE_SHIFT;

	if (!(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	if (vma->vm_pgoff == pages)
		return map_room(backend, vma);
	if (vma->vm_pgoff > pages || vma_pages(vma) > pages - vma->vm_pgoff)
		return -EINVAL;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
	vm_flags_set(vma, VM_MIXEDMAP | VM_DONTDUMP | VM_DONTEXPAND);
#else
	vma->vm_flags |= VM_MIXEDMAP | VM_DONTDUMP | VM_DONTEXPAND;
#endif
	vma->vm_ops = &window_operations;
	vma->vm_private_data = backend;
	return 0;
}

static loff_t backend_llseek(struct file *file, loff_t offset, int whence)
{
	struct backend *backend = file->private_data;

	return fixed_size_llseek(file, offset, whence,
				 backend->window_size + SLUICE_BACKEND_ROOM_SIZE);
}

/* Messages: from the guest. */

static void signal_message(struct message *message)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
	eventfd_signal(message->event);
#else
	eventfd_signal(message->event, 1);
#endif
}

static irqreturn_t message_arrived(int irq, void *data)
{
	signal_message(data);
	return IRQ_HANDLED;
}

static void drop_message(struct backend *backend, u32 vector)
{
	struct message *message = &backend->messages[vector];

	if (!message->event)
		return;
	free_irq(pci_irq_vector(backend->pdev, vector), message);
	eventfd_ctx_put(message->event);
	message->event = NULL;
}

/* What the message tells of may have happened before: the eventfd is signalled. */
static int set_message(struct backend *backend, u32 vector, int fd)
{
	struct message *message = &backend->messages[vector];
	struct eventfd_ctx *event;
	int error;

	drop_message(backend, vector);
	if (fd == -1)
		return 0;
	event = eventfd_ctx_fdget(fd);
	if (IS_ERR(event))
		return PTR_ERR(event);
	message->event = event;
	error = request_irq(pci_irq_vector(backend->pdev, vector),
			    message_arrived, 0, backend->misc_name, message);
	if (error) {
		message->event = NULL;
		eventfd_ctx_put(event);
		return error;
	}
	signal_message(message);
	return 0;
}

/* Calls: to the guest. */

static void notify_guest(struct call *call)
{
	kvm_hypercall2(SLUICE_NOTIFY, call->backend->slot, call->queue);
}

/* Runs with interrupts off under the eventfd's lock. */
static int call_signalled(wait_queue_entry_t *wait, unsigned int mode, int sync,
			  void *key)
{
	struct call *call = container_of(wait, struct call, wait);
	u64 count;

	if (key_to_poll(key) & EPOLLIN) {
		eventfd_ctx_do_read(call->event, &count);
		notify_guest(call);
	}
	return 0;
}

static void call_queue(struct file *file, wait_queue_head_t *head,
		       poll_table *table)
{
	struct call *call = container_of(table, struct call, table);

	add_wait_queue(head, &call->wait);
}

static void drop_call(struct call *call)
{
	u64 count;

	if (!call->event)
		return;
	eventfd_ctx_remove_wait_queue(call->event, &call->wait, &count);
	eventfd_ctx_put(call->event);
	call->event = NULL;
}

static int set_call(struct backend *backend, u32 queue, int fd)
{
	struct call *call = &backend->calls[queue];
	struct eventfd_ctx *event;
	struct file *file;

	drop_call(call);
	if (fd == -1)
		return 0;
	file = eventfd_fget(fd);
	if (IS_ERR(file))
		return PTR_ERR(file);
	event = eventfd_ctx_fileget(file);
	if (IS_ERR(event)) {
		fput(file);
		return PTR_ERR(event);
	}
	call->event = event;
	init_waitqueue_func_entry(&call->wait, call_signalled);
	init_poll_funcptr(&call->table, call_queue);
	/* It may have been signalled before we listened. */
	if (vfs_poll(file, &call->table) & EPOLLIN)
		notify_guest(call);
	/* The eventfd's queue of waiters lives as long as our reference to the context. */
	fput(file);
	return 0;
}

/* What the program asks. */

static int get_info(struct backend *backend, void __user *to)
{
	struct sluice_backend_info *info;
	u32 i;
	int error = 0;

	info = kzalloc(sizeof(*info), GFP_KERNEL);
	if (!info)
		return -ENOMEM;
	info->kind = get32(backend, SLUICE_KIND);
	info->state = get32(backend, SLUICE_STATE);
	info->status = get32(backend, SLUICE_STATUS);
	info->slot = backend->slot;
	info->device_features = get64(backend, SLUICE_DEVICE_FEATURES);
	info->driver_features = get64(backend, SLUICE_DRIVER_FEATURES);
	info->window = backend->window_size;
	info->queue_count = min_t(u32, get32(backend, SLUICE_QUEUES),
				  SLUICE_MAX_QUEUES);
	info->queue_size = get32(backend, SLUICE_QUEUE_SIZE);
	info->config_len = min_t(u32, get32(backend, SLUICE_CONFIG_LEN),
				 SLUICE_CONFIG_SIZE);
	info->range_count = min_t(u32, get32(backend, SLUICE_RANGES),
				  SLUICE_MAX_RANGES);
	memcpy(info->name, backend->name, sizeof(info->name));
	get_bytes(backend, SLUICE_SOURCE, info->source, sizeof(info->source));
	get_bytes(backend, SLUICE_CONFIG, info->config, sizeof(info->config));
	for (i = 0; i < info->range_count; i++) {
		u32 at = SLUICE_RANGE + i * SLUICE_RANGE_STRIDE;

		info->ranges[i].offset = get64(backend, at);
		info->ranges[i].bytes = get64(backend, at + 8);
	}
	for (i = 0; i < info->queue_count; i++) {
		struct sluice_backend_queue *queue = &info->queues[i];
		u32 at = SLUICE_QUEUE + i * SLUICE_QUEUE_STRIDE;

		queue->entries = get32(backend, at + SLUICE_QUEUE_ENTRIES);
		queue->enabled = get32(backend, at + SLUICE_QUEUE_ENABLED);
		queue->descriptors = get64(backend, at + SLUICE_QUEUE_DESC);
		queue->driver = get64(backend, at + SLUICE_QUEUE_DRIVER);
		queue->device = get64(backend, at + SLUICE_QUEUE_DEVICE);
	}
	if (copy_to_user(to, info, sizeof(*info)))
		error = -EFAULT;
	kfree(info);
	return error;
}

static int offer(struct backend *backend, const void __user *from)
{
	struct sluice_backend_offer *offer;
	int error = -ERANGE;

	offer = memdup_user(from, sizeof(*offer));
	if (IS_ERR(offer))
		return PTR_ERR(offer);
	if (offer->config_len > SLUICE_CONFIG_SIZE)
		goto out;
	put32(backend, SLUICE_DEVICE_FEATURES, lower_32_bits(offer->features));
	put32(backend, SLUICE_DEVICE_FEATURES + 4,
	      upper_32_bits(offer->features));
	put32(backend, SLUICE_QUEUES, offer->queue_count);
	put32(backend, SLUICE_QUEUE_SIZE, offer->queue_size);
	put32(backend, SLUICE_CONFIG_LEN, offer->config_len);
	put_config(backend, offer->config, offer->config_len);
	error = command(backend, SLUICE_CONTROL_OFFER);
out:
	kfree(offer);
	return error;
}

static int config_changed(struct backend *backend, const void __user *from)
{
	struct sluice_backend_config config;

	if (copy_from_user(&config, from, sizeof(config)))
		return -EFAULT;
	if (config.len > SLUICE_CONFIG_SIZE)
		return -ERANGE;
	put_config(backend, config.bytes, config.len);
	return command(backend, SLUICE_CONTROL_CONFIG_CHANGED);
}

/* The hypervisor checks what may be copied; here only the program's side is. */
static int copy(struct backend *backend, const void __user *from)
{
	struct sluice_backend_copy copy;
	void __user *local;
	long error;

	if (copy_from_user(&copy, from, sizeof(copy)))
		return -EFAULT;
	if (!copy.bytes || copy.bytes > SLUICE_DEVFILE_MAX_COPY)
		return -ERANGE;
	if (!backend->bounce)
		backend->bounce = alloc_pages_exact(SLUICE_DEVFILE_MAX_COPY,
						    GFP_KERNEL);
	if (!backend->bounce)
		return -ENOMEM;
	local = u64_to_user_ptr(copy.local);
	if (copy.way == SLUICE_DEVFILE_OUT &&
	    copy_from_user(backend->bounce, local, copy.bytes))
		return -EFAULT;
	error = kvm_hypercall4(SLUICE_DEVFILE_COPY,
			       backend->slot | (u64)copy.tag << 32,
			       copy.address, virt_to_phys(backend->bounce),
			       copy.bytes | (u64)copy.way << 32);
	if (error)
		return error;
	if (copy.way == SLUICE_DEVFILE_IN &&
	    copy_to_user(local, backend->bounce, copy.bytes))
		return -EFAULT;
	return 0;
}

static u64 space_of(struct backend *backend)
{
	return SLUICE_GRANT_DEVICE + backend->slot;
}

/* Pages that a guest lends by a table. */

/* What is listed from one place on. */
static long table_call(struct backend *backend, u64 number, u32 first, u32 count)
{
	u64 *list = backend->list;

	return kvm_hypercall3(number, space_of(backend), virt_to_phys(list + first), count);
}

/* The hypervisor checks what the guest permits. */
static long use_table(struct backend *backend, const void __user *from)
{
	u64 pages = backend->window_size >> PAGE_SHIFT;
	struct sluice_backend_table wanted;
	u64 *list;
	long done, i;

	static_assert(SLUICE_GRANT_MAX_BATCH * sizeof(*list) <= PAGE_SIZE);
	if (copy_from_user(&wanted, from, sizeof(wanted)))
		return -EFAULT;
	if (!wanted.count || wanted.count > SLUICE_GRANT_MAX_BATCH)
		return -ERANGE;
	if (!backend->list)
		backend->list = (void *)__get_free_page(GFP_KERNEL);
	if (!backend->mapped)
		backend->mapped = kvcalloc(BITS_TO_LONGS(pages), sizeof(long), GFP_KERNEL);
	if (!backend->list || !backend->mapped)
		return -ENOMEM;
	list = backend->list;
	if (copy_from_user(list, u64_to_user_ptr(wanted.list), wanted.count * sizeof(*list)))
		return -EFAULT;
	done = table_call(backend, wanted.unmap ? SLUICE_TABLE_UNMAP : SLUICE_TABLE_MAP, 0,
			  wanted.count);
	for (i = 0; i < done; i++)
		if ((u32)list[i] < pages)
			__assign_bit((u32)list[i], backend->mapped, !wanted.unmap);
	return done;
}

/* Places in the room are made addresses; the hypervisor checks the rest. */
static long copy_granted(struct backend *backend, const void __user *from)
{
	struct sluice_backend_table_copy wanted;
	void *room = READ_ONCE(backend->room);
	u64 *list, bytes, place;
	u32 i;

	if (copy_from_user(&wanted, from, sizeof(wanted)))
		return -EFAULT;
	if (!wanted.count || wanted.count > SLUICE_BACKEND_MAX_COPIES || wanted.reserved)
		return -ERANGE;
	if (!room)
		return -ENXIO;
	if (!backend->list)
		backend->list = (void *)__get_free_page(GFP_KERNEL);
	if (!backend->list)
		return -ENOMEM;
	list = backend->list;
	static_assert(SLUICE_BACKEND_MAX_COPIES * 2 * sizeof(*list) <= PAGE_SIZE);
	if (copy_from_user(list, u64_to_user_ptr(wanted.list), wanted.count * 2 * sizeof(*list)))
		return -EFAULT;
	for (i = 0; i < wanted.count; i++) {
		bytes = (list[2 * i] & ~SLUICE_TABLE_COPY_OUT) / SLUICE_TABLE_COPY_BYTES;
		place = list[2 * i + 1];
		if (place > SLUICE_BACKEND_ROOM_SIZE || bytes > SLUICE_BACKEND_ROOM_SIZE - place)
			return -ERANGE;
		list[2 * i + 1] = virt_to_phys(room) + place;
	}
	return table_call(backend, SLUICE_TABLE_COPY, 0, wanted.count);
}

/* What is not mapped any more, since the guest's life has ended, is left out. */
static void unmap_listed(struct backend *backend, u32 count)
{
	u32 done = 0;

	while (done < count) {
		long now = table_call(backend, SLUICE_TABLE_UNMAP, done, count - done);

		done += now > 0 ? now : 1;
	}
}

/* The program that had them mapped has ended. */
static void unmap_all(struct backend *backend)
{
	u64 pages = backend->window_size >> PAGE_SHIFT;
	u64 *list = backend->list;
	unsigned long reference;
	u32 count = 0;

	if (!backend->mapped)
		return;
	for_each_set_bit(reference, backend->mapped, pages) {
		list[count++] = reference;
		if (count == SLUICE_GRANT_MAX_BATCH) {
			unmap_listed(backend, count);
			count = 0;
		}
	}
	unmap_listed(backend, count);
	kvfree(backend->mapped);
	backend->mapped = NULL;
}

/* Maps of a device file. */

/* Takes back what is issued of some pages. With maps_lock held. */
static void revoke(struct map *map, u32 start, u32 end)
{
	struct backend *backend = map->backend;
	unsigned int from, to;

	for_each_set_bitrange(from, to, map->issued, end) {
		from = max(from, start);
		while (from < to) {
			long done = to - from;

			if (!backend->maps_gone)
				done = kvm_hypercall4(SLUICE_GRANT_REVOKE,
						      space_of(backend),
						      map->first + from, done,
						      SLUICE_GRANT_FORCED);
			/* What is not granted any more need not be taken back. */
			if (done <= 0)
				done = 1;
			bitmap_clear(map->issued, from, done);
			from += done;
		}
	}
}

/* The mapping changes: what is behind it is not the guest's to see any more. */
static bool map_changes(struct mmu_interval_notifier *notifier,
			const struct mmu_notifier_range *range,
			unsigned long sequence)
{
	struct map *map = container_of(notifier, struct map, notifier);
	unsigned long start = max_t(unsigned long, range->start, map->local);
	unsigned long end = min_t(unsigned long, range->end,
				  map->local + ((u64)map->pages << PAGE_SHIFT));

	spin_lock(&map->backend->maps_lock);
	mmu_interval_set_seq(notifier, sequence);
	if (start < end)
		revoke(map, (start - map->local) >> PAGE_SHIFT,
		       (end - map->local + PAGE_SIZE - 1) >> PAGE_SHIFT);
	if (range->event == MMU_NOTIFY_RELEASE)
		map->released = true;
	spin_unlock(&map->backend->maps_lock);
	return true;
}

static const struct mmu_interval_notifier_ops map_operations = {
	.invalidate = map_changes,
};

static void map_free(struct map *map)
{
	mmu_interval_notifier_remove(&map->notifier);
	spin_lock(&map->backend->maps_lock);
	revoke(map, 0, map->pages);
	spin_unlock(&map->backend->maps_lock);
	list_del(&map->entry);
	map->backend->map_count--;
	bitmap_free(map->issued);
	kfree(map);
}

/* Frees all maps, or those of programs that have ended. */
static void free_maps(struct backend *backend, bool all)
{
	struct map *map, *next;

	list_for_each_entry_safe(map, next, &backend->maps, entry)
		if (all || READ_ONCE(map->released))
			map_free(map);
}

/* The frame behind a page without struct page. -EAGAIN: the mapping changed. */
static int special_frame(struct vm_area_struct *vma, unsigned long address,
			 bool write, u64 *frame)
{
	unsigned int flags = write ? FAULT_FLAG_WRITE : 0;
	bool unlocked = false;
	int error, tries = 0;

again:
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	struct follow_pfnmap_args args = { .vma = vma, .address = address };

	error = follow_pfnmap_start(&args);
	if (!error) {
		bool may = args.writable || !write;

		*frame = PFN_PHYS(args.pfn);
		follow_pfnmap_end(&args);
		return may ? 0 : -EINVAL;
	}
#else
	spinlock_t *lock;
	pte_t *pte;

	error = follow_pte(vma->vm_mm, address, &pte, &lock);
	if (!error) {
		bool may = pte_write(*pte) || !write;

		*frame = PFN_PHYS(pte_pfn(*pte));
		pte_unmap_unlock(pte, lock);
		return may ? 0 : -EINVAL;
	}
#endif
	if (tries++)
		return -EFAULT;
	error = fixup_user_fault(vma->vm_mm, address, flags, &unlocked);
	if (error)
		return error;
	if (unlocked)
		return -EAGAIN;
	goto again;
}

/* A device's, or a buffer of one that drivers share (dma-buf). */
static bool is_of_device(struct file *file)
{
	struct inode *inode = file_inode(file);

	return file->f_op != &backend_operations &&
	       (S_ISCHR(inode->i_mode) || inode->i_sb->s_magic == DMA_BUF_MAGIC);
}

/* The frame behind a page of a shared mapping of a device file. */
static int frame_of(unsigned long address, bool write, u64 *frame)
{
	struct mm_struct *mm = current->mm;
	struct vm_area_struct *vma;
	bool special = false;
	int error = -EINVAL;
	struct page *page;

	mmap_read_lock(mm);
	vma = vma_lookup(mm, address);
	if (vma && (vma->vm_flags & VM_MAYSHARE) && vma->vm_file &&
	    is_of_device(vma->vm_file)) {
		special = vma->vm_flags & (VM_IO | VM_PFNMAP);
		error = special ? special_frame(vma, address, write, frame) : 0;
	}
	mmap_read_unlock(mm);
	if (error || special)
		return error;
	if (get_user_pages_fast(address, 1, write ? FOLL_WRITE : 0, &page) != 1)
		return -EFAULT;
	*frame = page_to_phys(page);
	/* What keeps it is the mapping, of whose changes we hear. */
	put_page(page);
	return 0;
}

/*
 * Whether a page of a map lies where it should: buffers of a guest with a region
 * in that, which a driver that took them before anybody asked does not know. A single page is
 * none: drivers have their positions and the like in such.
 */
static bool is_in_place(struct map *map, u64 frame)
{
	struct backend *backend = map->backend;

	if (!backend->region || map->pages == 1 ||
	    region_has(backend->region, PHYS_PFN(frame)))
		return true;
	pr_err_ratelimited("%s: a driver's buffer is not in the guest's region, and is not shown: have it take its memory when it is asked to (snd_pcm.preallocate_dma=0)\n",
			    backend->name);
	return false;
}

/* Issues some pages of a map, as they are at one moment. Returns how many, at least one. */
static long issue_some(struct map *map, u32 start, u32 count,
		      struct grant *grants)
{
	struct backend *backend = map->backend;
	unsigned long sequence;
	int error, tries = 0;
	long done = 0;
	u64 frame;
	u32 i;

	do {
		if (tries++ == ISSUE_TRIES || fatal_signal_pending(current))
			return -EAGAIN;
		sequence = mmu_interval_read_begin(&map->notifier);
		for (i = 0; i < count; i++) {
			error = frame_of(map->local +
						 ((u64)(start + i) << PAGE_SHIFT),
					 map->write, &frame);
			if (error == -EAGAIN)
				break;
			if (error)
				return error;
			if (!is_in_place(map, frame))
				return -EXDEV;
			grants[i].what = map->first + start + i;
			grants[i].page =
				frame | (map->write ? 0 : SLUICE_GRANT_READ_ONLY);
		}
		if (i < count)
			continue;
		spin_lock(&backend->maps_lock);
		if (!mmu_interval_read_retry(&map->notifier, sequence)) {
			done = backend->maps_gone ?
				       -ENODEV :
				       kvm_hypercall3(SLUICE_GRANT_BATCH,
						      space_of(backend),
						      virt_to_phys(grants),
						      count);
			if (done > 0)
				bitmap_set(map->issued, start, done);
		}
		spin_unlock(&backend->maps_lock);
	} while (!done);
	return done;
}

static int map_pages(struct backend *backend, const void __user *from)
{
	struct sluice_backend_map asked;
	struct grant *grants = NULL;
	struct map *map;
	long done;
	u32 start;
	int error;

	if (copy_from_user(&asked, from, sizeof(asked)))
		return -EFAULT;
	if (!asked.pages || asked.pages > SLUICE_DEVFILE_MAPS_SIZE >> PAGE_SHIFT ||
	    !PAGE_ALIGNED(asked.local) || asked.local >= TASK_SIZE ||
	    (u64)asked.pages << PAGE_SHIFT > TASK_SIZE - asked.local)
		return -EINVAL;
	free_maps(backend, false);
	if (backend->map_count == SLUICE_DEVFILE_MAX_MAPS)
		return -ENOMEM;
	map = kzalloc(sizeof(*map), GFP_KERNEL);
	if (!map)
		return -ENOMEM;
	map->backend = backend;
	map->local = asked.local;
	map->first = asked.first;
	map->pages = asked.pages;
	map->write = asked.write;
	map->issued = bitmap_zalloc(asked.pages, GFP_KERNEL);
	/* A list lies in one page. */
	grants = (void *)get_zeroed_page(GFP_KERNEL);
	error = -ENOMEM;
	if (!map->issued || !grants)
		goto free;
	error = mmu_interval_notifier_insert(&map->notifier, current->mm,
					     asked.local,
					     (u64)asked.pages << PAGE_SHIFT,
					     &map_operations);
	if (error)
		goto free;
	list_add(&map->entry, &backend->maps);
	backend->map_count++;
	for (start = 0; start < asked.pages; start += done) {
		done = issue_some(map, start,
				  min_t(u32, PAGES_PER_ISSUE,
					asked.pages - start),
				  grants);
		if (done < 0) {
			error = done;
			map_free(map);
			break;
		}
	}
	free_page((unsigned long)grants);
	return error;

free:
	free_page((unsigned long)grants);
	bitmap_free(map->issued);
	kfree(map);
	return error;
}

static int unmap_pages(struct backend *backend, const void __user *from)
{
	struct sluice_backend_unmap asked;
	struct map *map;

	if (copy_from_user(&asked, from, sizeof(asked)))
		return -EFAULT;
	list_for_each_entry(map, &backend->maps, entry)
		if (map->first == asked.first) {
			map_free(map);
			return 0;
		}
	return -ENOENT;
}

static long call_of_program(struct backend *backend, unsigned int number,
			    void __user *argument)
{
	struct sluice_backend_event event;

	switch (number) {
	case SLUICE_BACKEND_INFO:
		return get_info(backend, argument);
	case SLUICE_BACKEND_OFFER:
		return offer(backend, argument);
	case SLUICE_BACKEND_RESET_DONE:
		return command(backend, SLUICE_CONTROL_RESET_DONE);
	case SLUICE_BACKEND_CONFIG_CHANGED:
		return config_changed(backend, argument);
	case SLUICE_BACKEND_NEEDS_RESET:
		return command(backend, SLUICE_CONTROL_NEEDS_RESET);
	case SLUICE_BACKEND_PASS_FOCUS:
		return command(backend, SLUICE_CONTROL_PASS_FOCUS);
	case SLUICE_BACKEND_COPY:
		return copy(backend, argument);
	case SLUICE_BACKEND_MAP:
		return map_pages(backend, argument);
	case SLUICE_BACKEND_UNMAP:
		return unmap_pages(backend, argument);
	case SLUICE_BACKEND_TABLE:
		return use_table(backend, argument);
	case SLUICE_BACKEND_TABLE_COPY:
		return copy_granted(backend, argument);
	case SLUICE_BACKEND_ACT:
		return backend->region ? region_act(backend->region) : 0;
	case SLUICE_BACKEND_SET_EVENT:
	case SLUICE_BACKEND_SET_KICK:
	case SLUICE_BACKEND_SET_CALL:
		if (copy_from_user(&event, argument, sizeof(event)))
			return -EFAULT;
		if (number == SLUICE_BACKEND_SET_EVENT)
			return set_message(backend, SLUICE_CHANGED_VECTOR,
					   event.fd);
		if (event.queue >= SLUICE_MAX_QUEUES)
			return -ERANGE;
		if (number == SLUICE_BACKEND_SET_CALL)
			return set_call(backend, event.queue, event.fd);
		return set_message(backend, SLUICE_KICK_VECTOR + event.queue,
				   event.fd);
	default:
		return -ENOTTY;
	}
}

static long backend_ioctl(struct file *file, unsigned int number,
			  unsigned long argument)
{
	struct backend *backend = file->private_data;
	long answer;

	mutex_lock(&backend->lock);
	answer = backend->pdev ? call_of_program(backend, number,
						 (void __user *)argument) :
				 -ENODEV;
	mutex_unlock(&backend->lock);
	return answer;
}

static int backend_open(struct inode *inode, struct file *file)
{
	struct backend *backend =
		container_of(file->private_data, struct backend, misc);
	int error = 0;

	mutex_lock(&backend->lock);
	if (!backend->pdev) {
		error = -ENODEV;
	} else if (backend->open) {
		error = -EBUSY;
	} else {
		kref_get(&backend->users);
		backend->open = true;
		backend->mapping = file->f_mapping;
		file->private_data = backend;
	}
	mutex_unlock(&backend->lock);
	return error;
}

static void drop_events(struct backend *backend)
{
	u32 i;

	for (i = 0; i < SLUICE_VECTORS; i++)
		drop_message(backend, i);
	for (i = 0; i < SLUICE_MAX_QUEUES; i++)
		drop_call(&backend->calls[i]);
}

static int backend_release(struct inode *inode, struct file *file)
{
	struct backend *backend = file->private_data;

	mutex_lock(&backend->lock);
	if (backend->pdev) {
		drop_events(backend);
		unmap_all(backend);
	}
	free_maps(backend, true);
	backend->mapping = NULL;
	backend->open = false;
	mutex_unlock(&backend->lock);
	kref_put(&backend->users, backend_free);
	return 0;
}

static const struct file_operations backend_operations = {
	.owner = THIS_MODULE,
	.open = backend_open,
	.release = backend_release,
	.llseek = backend_llseek,
	.mmap = backend_mmap,
	.unlocked_ioctl = backend_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/* The function. */

/* A name that can be a file's: letters, digits, '-', '_' and dots inside. */
static bool name_is_plain(const char *name)
{
	size_t len = strnlen(name, SLUICE_NAME_SIZE);
	size_t i;

	if (len == 0 || len == SLUICE_NAME_SIZE || name[0] == '.')
		return false;
	for (i = 0; i < len; i++) {
		char c = name[i];

		if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
		    !(c >= '0' && c <= '9') && !strchr("-_.", c))
			return false;
	}
	return true;
}

static int claim_name(struct backend *backend)
{
	struct backend *other;
	int error = 0;

	mutex_lock(&names_lock);
	list_for_each_entry(other, &backends, entry)
		if (!strcmp(other->name, backend->name))
			error = -EEXIST;
	if (!error)
		list_add(&backend->entry, &backends);
	mutex_unlock(&names_lock);
	return error;
}

static void release_name(struct backend *backend)
{
	mutex_lock(&names_lock);
	list_del(&backend->entry);
	mutex_unlock(&names_lock);
}

static int map_window(struct backend *backend)
{
	struct pci_dev *pdev = backend->pdev;
	u64 start = pci_resource_start(pdev, SLUICE_WINDOW_BAR);
	u64 size = pci_resource_len(pdev, SLUICE_WINDOW_BAR);
	void *window;

	if (!size || !IS_ALIGNED(start | size, WINDOW_ALIGN)) {
		dev_err(&pdev->dev,
			"the window is not in whole parts of %lu KiB\n",
			WINDOW_ALIGN / 1024);
		return -EINVAL;
	}
	backend->pagemap.type = MEMORY_DEVICE_GENERIC;
	backend->pagemap.range.start = start;
	backend->pagemap.range.end = start + size - 1;
	backend->pagemap.nr_range = 1;
	window = memremap_pages(&backend->pagemap, dev_to_node(&pdev->dev));
	if (IS_ERR(window)) {
		dev_err(&pdev->dev, "no struct pages for the window: %ld\n",
			PTR_ERR(window));
		return PTR_ERR(window);
	}
	backend->window_size = size;
	return 0;
}

/*
 * memunmap_pages does not wait for others' references to pages of this type,
 * such as those of direct I/O: we do.
 */
static void unmap_window(struct backend *backend)
{
	unsigned long pfn = PHYS_PFN(backend->pagemap.range.start);
	unsigned long end = pfn + (backend->window_size >> PAGE_SHIFT);
	unsigned int waited = 0;

	for (; pfn < end; pfn++) {
		while (page_count(pfn_to_page(pfn)) > 1) {
			msleep(20);
			if (++waited == 500)
				pr_warn("%s: something still uses pages of the window\n",
					backend->name);
		}
		if (!(pfn & 0xffff))
			cond_resched();
	}
	memunmap_pages(&backend->pagemap);
}

static int check_registers(struct backend *backend)
{
	struct device *dev = &backend->pdev->dev;
	u32 magic = get32(backend, SLUICE_MAGIC);
	u32 version = get32(backend, SLUICE_VERSION);

	if (magic != SLUICE_MAGIC_VALUE || version != SLUICE_VERSION_VALUE) {
		dev_err(dev,
			"magic number %#x, version %u of the interface: this driver knows version %u\n",
			magic, version, SLUICE_VERSION_VALUE);
		return -ENODEV;
	}
	get_bytes(backend, SLUICE_NAME, backend->name, SLUICE_NAME_SIZE);
	if (!name_is_plain(backend->name)) {
		dev_err(dev, "its name cannot be that of a file\n");
		return -EINVAL;
	}
	backend->slot = get32(backend, SLUICE_SLOT);
	return 0;
}

static int backend_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct backend *backend;
	int error;
	u32 i;

	backend = kzalloc(sizeof(*backend), GFP_KERNEL);
	if (!backend)
		return -ENOMEM;
	kref_init(&backend->users);
	mutex_init(&backend->lock);
	init_rwsem(&backend->window_lock);
	INIT_LIST_HEAD(&backend->maps);
	spin_lock_init(&backend->maps_lock);
	backend->pdev = pdev;
	for (i = 0; i < SLUICE_MAX_QUEUES; i++) {
		backend->calls[i].backend = backend;
		backend->calls[i].queue = i;
	}

	error = -ENOMEM;
	backend->sink = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!backend->sink)
		goto free;
	error = pci_enable_device_mem(pdev);
	if (error)
		goto free;
	error = pci_request_regions(pdev, KBUILD_MODNAME);
	if (error)
		goto disable;
	pci_set_master(pdev);
	error = -EINVAL;
	if (pci_resource_len(pdev, SLUICE_REGISTERS_BAR) <
	    SLUICE_REGISTERS_SIZE)
		goto release;
	error = -ENOMEM;
	backend->registers = pci_iomap(pdev, SLUICE_REGISTERS_BAR,
				       SLUICE_REGISTERS_SIZE);
	if (!backend->registers)
		goto release;
	error = check_registers(backend);
	if (error)
		goto unmap_registers;
	error = map_window(backend);
	if (error)
		goto unmap_registers;
	backend->region = region_new(backend->slot);
	error = pci_alloc_irq_vectors(pdev, SLUICE_VECTORS, SLUICE_VECTORS,
				      PCI_IRQ_MSIX);
	if (error < 0)
		goto unmap;
	error = claim_name(backend);
	if (error) {
		dev_err(&pdev->dev, "another function is called %s, too\n",
			backend->name);
		goto free_vectors;
	}
	snprintf(backend->misc_name, sizeof(backend->misc_name), "sluice-%s",
		 backend->name);
	snprintf(backend->node_name, sizeof(backend->node_name), "sluice/%s",
		 backend->name);
	backend->misc.minor = MISC_DYNAMIC_MINOR;
	backend->misc.name = backend->misc_name;
	backend->misc.nodename = backend->node_name;
	backend->misc.fops = &backend_operations;
	backend->misc.parent = &pdev->dev;
	backend->misc.mode = 0600;
	pci_set_drvdata(pdev, backend);
	error = misc_register(&backend->misc);
	if (error)
		goto forget_name;
	return 0;

forget_name:
	release_name(backend);
free_vectors:
	pci_free_irq_vectors(pdev);
unmap:
	if (backend->region)
		region_end(backend->region);
	unmap_window(backend);
unmap_registers:
	pci_iounmap(pdev, backend->registers);
release:
	pci_release_regions(pdev);
disable:
	pci_disable_device(pdev);
free:
	kref_put(&backend->users, backend_free);
	return error;
}

static void backend_remove(struct pci_dev *pdev)
{
	struct backend *backend = pci_get_drvdata(pdev);

	u32 i;

	/* Nobody opens it from here on. */
	misc_deregister(&backend->misc);
	mutex_lock(&backend->lock);
	/* Another function may come to the slot. */
	spin_lock(&backend->maps_lock);
	backend->maps_gone = true;
	spin_unlock(&backend->maps_lock);
	/* The program asks what is the matter, and is told that it is gone. */
	for (i = 0; i < SLUICE_VECTORS; i++)
		if (backend->messages[i].event)
			signal_message(&backend->messages[i]);
	drop_events(backend);
	down_write(&backend->window_lock);
	backend->window_gone = true;
	up_write(&backend->window_lock);
	if (backend->mapping)
		unmap_mapping_range(backend->mapping, 0, 0, 1);
	backend->pdev = NULL;
	mutex_unlock(&backend->lock);

	release_name(backend);
	if (backend->region)
		region_end(backend->region);
	unmap_window(backend);
	pci_free_irq_vectors(pdev);
	pci_iounmap(pdev, backend->registers);
	pci_release_regions(pdev);
	pci_disable_device(pdev);
	kref_put(&backend->users, backend_free);
}

static const struct pci_device_id backend_ids[] = {
	{ PCI_DEVICE(SLUICE_VENDOR, SLUICE_DEVICE) },
	{}
};
MODULE_DEVICE_TABLE(pci, backend_ids);

static struct pci_driver backend_driver = {
	.name = KBUILD_MODNAME,
	.id_table = backend_ids,
	.probe = backend_probe,
	.remove = backend_remove,
};
module_pci_driver(backend_driver);

MODULE_DESCRIPTION("Back-end functions of the Sluice hypervisor");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
MODULE_VERSION("0.1.0");
