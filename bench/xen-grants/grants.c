// SPDX-License-Identifier: GPL-2.0-only
/*
 * What Xen's grant operations cost, measured by its dom0 when the module is loaded.
 *
 * Dom0 maps pages, unmaps them, and has Xen copy to and from them. They are those that another domain has granted, where the same module was loaded with
 * `grants`, or dom0 grants them to itself. For Xen the latter is as with another paravirtual domain's pages, but for the IOMMU, which a domain's own pages
 * are in already (Xen 4.17, xen/common/grant_table.c: map_grant_ref and unmap_common compare the two domains only there).
 *
 * The hypercall alone is counted, not what the kernel does before and after it: no list of machine frames is kept (gnttab_map_refs). The count is the
 * time-stamp counter's, which Xen leaves alone for a paravirtual dom0, and which counts instructions where QEMU's time is instructions. Whether it does so
 * is told, too: by a loop of a known length. A counter outside sees a mark before and after each hypercall (bench/instructions.rs).
 *
 * The results are lines of the kernel's log.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/irqflags.h>
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/string.h>
#include <asm/msr.h>
#include <asm/xen/hypercall.h>
#include <xen/grant_table.h>
#include <xen/interface/grant_table.h>
#include <xen/page.h>
#include <xen/xen.h>

/* Pages that are granted, and operations of a hypercall that has many. */
#define BATCH 64
/* Hypercalls with one operation, and hypercalls with many, of which a mean is made. */
#define SINGLES 1000
#define BATCHES 100
/* Rounds of the loop whose length is known. */
#define TURNS 1000
/* Bytes of the smaller copy. */
#define FEW 64

static bool grants;
module_param(grants, bool, 0444);
MODULE_PARM_DESC(grants, "Only grant pages to dom0, and say their references (default: no)");

static unsigned short owner;
module_param(owner, ushort, 0444);
MODULE_PARM_DESC(owner, "Domain whose pages dom0 maps (default: its own)");

static unsigned int refs[BATCH], refs_given;
module_param_array(refs, uint, &refs_given, 0444);
MODULE_PARM_DESC(refs, "References of those pages");

/* Ticks of one kind of call; and which pair of marks the first of these calls has, and how many pairs later the next has its own. */
struct count {
	const char *name;
	u64 ticks, least, most;
	unsigned int calls, operations;
	unsigned int first, step;
};

/* What is measured. */
enum kind { MAP, UNMAP, COPY, COPY_FEW, BACK, BACK_FEW, EMPTY, KINDS };

static struct page *granted[BATCH], *sources[BATCH], *places[BATCH];
/* The first word of each page that is granted. */
static u32 words[BATCH];
static struct gnttab_map_grant_ref maps[BATCH];
static struct gnttab_unmap_grant_ref unmaps[BATCH];
static struct gnttab_copy copies[BATCH];
static unsigned int failed;
/* Pairs of marks so far. */
static unsigned int pairs;

/* A NOP with "MARK" as its displacement, which no hypervisor sees. */
static __always_inline void mark(void)
{
	asm volatile(".byte 0x0f, 0x1f, 0x80; .ascii \"MARK\"" : : : "memory");
}

static void add(struct count *count, u64 ticks, unsigned int operations)
{
	if (!count->calls)
		count->first = pairs;
	if (count->calls == 1)
		count->step = pairs - count->first;
	pairs++;
	if (!count->calls || ticks < count->least)
		count->least = ticks;
	if (ticks > count->most)
		count->most = ticks;
	count->ticks += ticks;
	count->calls++;
	count->operations += operations;
}

static void tell(const struct count *count)
{
	pr_info("SLUICE-RESULT at=%s ticks=%llu calls=%u operations=%u least=%llu most=%llu first=%u step=%u\n",
		count->name, count->ticks, count->calls, count->operations, count->least,
		count->most, count->first, count->step);
}

/* One hypercall. The kernel has no interrupts meanwhile; those of Xen's own are counted. */
static void call(struct count *count, unsigned int command, void *operations, unsigned int number)
{
	unsigned long flags;
	u64 before, after;
	int result;

	local_irq_save(flags);
	before = rdtsc();
	mark();
	result = HYPERVISOR_grant_table_op(command, operations, number);
	mark();
	after = rdtsc();
	local_irq_restore(flags);
	failed += !!result;
	add(count, after - before, number);
}

static void prepare_map(unsigned int at)
{
	gnttab_set_map_op(maps + at, (unsigned long)page_address(places[at]), GNTMAP_host_map,
			  refs[at], owner);
}

static void prepare_unmap(unsigned int at)
{
	gnttab_set_unmap_op(unmaps + at, (unsigned long)page_address(places[at]), GNTMAP_host_map,
			    maps[at].handle);
}

static void prepare_copy(unsigned int at, unsigned int bytes)
{
	copies[at] = (struct gnttab_copy){
		.source = { .u.gmfn = xen_page_to_gfn(sources[at]), .domid = DOMID_SELF },
		.dest = { .u.ref = refs[at], .domid = owner },
		.len = bytes,
		.flags = GNTCOPY_dest_gref,
	};
}

static void prepare_copy_back(unsigned int at, unsigned int bytes)
{
	copies[at] = (struct gnttab_copy){
		.source = { .u.ref = refs[at], .domid = owner },
		.dest = { .u.gmfn = xen_page_to_gfn(sources[at]), .domid = DOMID_SELF },
		.len = bytes,
		.flags = GNTCOPY_source_gref,
	};
}

/* Maps pages from one on, shows that they are mapped, and unmaps them. */
static void map_and_unmap(struct count *mapped, struct count *unmapped, unsigned int first,
			  unsigned int number)
{
	unsigned int at;

	for (at = first; at < first + number; at++)
		prepare_map(at);
	call(mapped, GNTTABOP_map_grant_ref, maps + first, number);
	for (at = first; at < first + number; at++) {
		u32 *seen = page_address(places[at]);

		if (maps[at].status != GNTST_okay) {
			failed++;
			return;
		}
		failed += READ_ONCE(*seen) != words[at];
		words[at] = at + mapped->calls;
		WRITE_ONCE(*seen, words[at]);
		prepare_unmap(at);
	}
	call(unmapped, GNTTABOP_unmap_grant_ref, unmaps + first, number);
	for (at = first; at < first + number; at++)
		failed += unmaps[at].status != GNTST_okay;
}

/* Has pages copied. Whether they are is seen when they are mapped again, and at once if they are dom0's own. */
static void copy(struct count *copied, unsigned int first, unsigned int number, unsigned int bytes)
{
	unsigned int at;

	for (at = first; at < first + number; at++) {
		memset(page_address(sources[at]), at + copied->calls, bytes);
		prepare_copy(at, bytes);
	}
	call(copied, GNTTABOP_copy, copies + first, number);
	for (at = first; at < first + number; at++) {
		failed += copies[at].status != GNTST_okay;
		words[at] = *(u32 *)page_address(sources[at]);
		if (granted[at])
			failed += !!memcmp(page_address(sources[at]), page_address(granted[at]),
					   bytes);
	}
}

/* Has pages copied the other way, and looks whether they are. */
static void copy_back(struct count *copied, unsigned int first, unsigned int number,
		      unsigned int bytes)
{
	unsigned int at;

	for (at = first; at < first + number; at++) {
		u32 *word = page_address(sources[at]);

		memset(word, 0, bytes);
		*word = ~words[at];
		prepare_copy_back(at, bytes);
	}
	call(copied, GNTTABOP_copy, copies + first, number);
	for (at = first; at < first + number; at++) {
		u32 *word = page_address(sources[at]);

		failed += copies[at].status != GNTST_okay;
		failed += *word != words[at];
		if (granted[at])
			failed += !!memcmp(word, page_address(granted[at]), bytes);
	}
}

/* What a count has of itself, and whether a tick is an instruction. */
static void calibrate(void)
{
	struct count none = { .name = "none" }, loop = { .name = "loop" };
	unsigned int round;

	for (round = 0; round < SINGLES; round++) {
		unsigned long flags, turns = TURNS;
		u64 before, after;

		local_irq_save(flags);
		before = rdtsc();
		mark();
		mark();
		after = rdtsc();
		local_irq_restore(flags);
		add(&none, after - before, 1);

		local_irq_save(flags);
		before = rdtsc();
		mark();
		asm volatile("1: dec %0; jnz 1b" : "+r"(turns) : : "cc");
		mark();
		after = rdtsc();
		local_irq_restore(flags);
		add(&loop, after - before, 2 * TURNS);
	}
	tell(&none);
	tell(&loop);
}

/* Hypercalls, each with so many operations; the first of each kind are not counted. What has no name is not measured. */
static void measure(const char *names[KINDS], unsigned int calls, unsigned int number)
{
	unsigned int warm, kind;

	for (warm = 0; warm < 2; warm++) {
		struct count counts[KINDS] = {};
		unsigned int round;

		for (kind = 0; kind < KINDS; kind++)
			counts[kind].name = names[kind];
		for (round = 0; round < (warm ? calls : BATCH); round++) {
			unsigned int first = round * number % BATCH;

			map_and_unmap(counts + MAP, counts + UNMAP, first, number);
			copy(counts + COPY, first, number, PAGE_SIZE);
			copy(counts + COPY_FEW, first, number, FEW);
			copy_back(counts + BACK, first, number, PAGE_SIZE);
			copy_back(counts + BACK_FEW, first, number, FEW);
			if (names[EMPTY])
				call(counts + EMPTY, GNTTABOP_map_grant_ref, maps, 0);
		}
		for (kind = 0; warm && kind < KINDS; kind++) {
			if (names[kind])
				tell(counts + kind);
		}
	}
}

static int grant_all(void)
{
	unsigned int at;

	for (at = 0; at < BATCH; at++) {
		int ref;

		granted[at] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!granted[at])
			return -ENOMEM;
		ref = gnttab_grant_foreign_access(0, xen_page_to_gfn(granted[at]), 0);
		if (ref < 0)
			return ref;
		refs[at] = ref;
	}
	return 0;
}

/* Tells dom0 by the console what it is to map. */
static void tell_refs(void)
{
	static char text[BATCH * 12];
	unsigned int at, length = 0;

	for (at = 0; at < BATCH; at++)
		length += scnprintf(text + length, sizeof(text) - length, at ? ",%u" : "%u",
				    refs[at]);
	pr_info("granted=%s.\n", text);
}

static int prepare(void)
{
	unsigned int at;

	for (at = 0; at < BATCH; at++) {
		sources[at] = alloc_page(GFP_KERNEL);
		if (!sources[at])
			return -ENOMEM;
	}
	return gnttab_alloc_pages(BATCH, places);
}

/* Nothing is given back: the machine ends after it. */
static int __init grants_init(void)
{
	static const char *singles[KINDS] = { "map", "unmap", "copy", "copy_64", "copy_back",
					      "copy_back_64", "empty" };
	static const char *batches[KINDS] = { "batch_map", "batch_unmap", "batch_copy",
					      "batch_copy_64", "batch_copy_back",
					      "batch_copy_back_64" };
	struct gnttab_get_version version = { .dom = DOMID_SELF };
	int error;

	if (!xen_domain())
		return -ENODEV;
	if (refs_given && refs_given != BATCH)
		return -EINVAL;
	if (!refs_given) {
		error = grant_all();
		if (error)
			return error;
	}
	if (grants) {
		tell_refs();
		return 0;
	}
	error = prepare();
	if (error)
		return error;
	calibrate();
	measure(singles, SINGLES, 1);
	measure(batches, BATCHES, BATCH);
	failed += !!HYPERVISOR_grant_table_op(GNTTABOP_get_version, &version, 1);
	pr_info("SLUICE-RESULT version=%u failed=%u pairs=%u\n", version.version, failed,
		pairs);
	return 0;
}
module_init(grants_init);

MODULE_DESCRIPTION("What Xen's grant operations cost");
MODULE_LICENSE("GPL");
