// SPDX-License-Identifier: GPL-2.0-only
/*
 * A cache of page-table pages, for the guests of the Sluice hypervisor that make their own page tables.
 *
 * A page that was a page table becomes one again, instead of going through the kernel's allocator: it is empty already, and it is
 * semi-writable, which means that software may write it while it is no table, and devices never reach it. So it changes between the two without a flush of
 * the IOMMU's cache. On a machine without that hypervisor it is the cache alone.
 *
 * There is a list of pages for each level. Allocation takes the first page of it, freeing adds one to its end, in the same time however many there are. Pages
 * come from the kernel's allocator to begin with (`prefill`), and then are those that were freed: these are made semi-writable some at a time, by one call of the
 * hypervisor. Under pressure they are given back, and made ordinary memory before; also beyond a threshold, which is fixed or follows what was needed (adapt.h).
 *
 * The kernel frees the tables of the lower levels when no other processor walks them any more (RCU). The cache has a reference of
 * its own to each such page: it is free when this is the only one, and it never reaches the kernel's allocator as long as it is the cache's.
 *
 * Source: "PiBooster: Performance Accelerations in Page Table Management for Paravirtual VMs", 3.5 and 4.2.
 * Deviations: a page that a memory control group was charged for is not kept, and pages of the cache are charged to none; lists are of pages themselves, and
 * not of nodes with their addresses.
 *
 * Locks: the cache's of one level, then hypercall_lock. Nothing sleeps under them.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>
#include <asm/pgalloc.h>
#include <xen/xen.h>
#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

#include "kernels.h"
#include "pibooster.h"
#include "sluice.h"
#include "trace.h"

/* Pages that are made semi-writable together. */
#define FRESH_MOST 16
/* Frames that are looked at without a pause. */
#define LOOK 4096

/* What the cache knows of a frame, 0: nothing, or 1 + its level with one of these. */
#define STATE_LEVEL 0x0f
#define STATE_LISTED 0x10 /* in one of the lists, or in use as a table if not */
#define STATE_SEMI 0x20

static unsigned int prefill[LEVELS] = { 8, 8, 16, 16, 64 };
module_param_array(prefill, uint, NULL, 0444);
MODULE_PARM_DESC(prefill, "Pages to begin with: PGD, user PGD, PUD, PMD, PTE (default: 8,8,16,16,64)");

static bool verify;
module_param(verify, bool, 0644);
MODULE_PARM_DESC(verify, "Look whether pages are empty before they become tables (default: no)");

static bool semi = true;
module_param(semi, bool, 0444);
MODULE_PARM_DESC(semi, "Make pages semi-writable, where the hypervisor has that (default: yes)");

struct cache caches[LEVELS] = {
	[LEVEL_PGD] = { .name = "pgd", .order = PGD_ALLOCATION_ORDER },
	[LEVEL_USER_PGD] = { .name = "upgd" },
	[LEVEL_PUD] = { .name = "pud", .counted = true },
	[LEVEL_PMD] = { .name = "pmd", .counted = true },
	[LEVEL_PTE] = { .name = "pte", .counted = true },
};

u64 semi_calls, semi_frames, dirty_pages;
unsigned int threshold, threshold_percent;

/* The entry of programs' tables that is the kernel's, and the same in all. */
static pgd_t common_entry;

static bool on;
static bool patched; /* the kernel's functions are replaced */
static DEFINE_MUTEX(switch_lock);
static u8 *states; /* by frame number */
static unsigned long frames;

/* A list for the hypervisor. */
static DEFINE_SPINLOCK(hypercall_lock);
static u64 batch[SLUICE_SEMI_MAX_BATCH];

/* Misses between two looks for pages that did not come back the usual way. */
#define LOOK_EVERY 64

static void tidy(struct work_struct *work);
static DECLARE_WORK(tidy_work, tidy);

/* Each level keeps as many pages as it needed lately. */
static bool adapts;

/* What happens once a second, while it does or a record is made. */
static void step(struct work_struct *work);
static DECLARE_DELAYED_WORK(step_work, step);

static u8 *state_of(struct page *page)
{
	return states + page_to_pfn(page);
}

/* Makes the first pages of a batch semi-writable, or ends that. Without the hypervisor there is nothing to do. */
static void call_batch(unsigned long count, bool set)
{
	long result;

	if (!semi || !count)
		return;
	result = xen_single_call(SLUICE_SEMI_WRITABLE, (unsigned long)batch, count,
				 set ? SLUICE_SEMI_SET : SLUICE_SEMI_CLEAR, 0, 0);
	WARN_ONCE(result, "the hypervisor refuses pages: %ld\n", result);
	semi_calls++;
	if (set)
		semi_frames += count;
}

static void set_semi(struct list_head *pages, bool set)
{
	unsigned long count = 0;
	struct page *page;

	spin_lock(&hypercall_lock);
	list_for_each_entry(page, pages, lru) {
		u8 *state = state_of(page);

		if (!semi || set == !!(*state & STATE_SEMI))
			continue;
		*state ^= STATE_SEMI;
		batch[count++] = pfn_to_mfn(page_to_pfn(page));
		if (count == ARRAY_SIZE(batch)) {
			call_batch(count, set);
			count = 0;
		}
	}
	call_batch(count, set);
	spin_unlock(&hypercall_lock);
}

/* Pages that came lately are ready, too. */
static void make_ready(struct cache *cache)
{
	set_semi(&cache->fresh, true);
	list_splice_tail_init(&cache->fresh, &cache->ready);
	cache->ready_count += cache->fresh_count;
	cache->fresh_count = 0;
}

static void add_fresh(struct cache *cache, struct page *page)
{
	*state_of(page) = (cache - caches + 1) | STATE_LISTED;
	list_add_tail(&page->lru, &cache->fresh);
	cache->fresh_count++;
}

/* The page must be empty: a table with something in it would show another program's memory. */
static void look_at(struct cache *cache, struct page *page)
{
	/* Programs' tables have an entry of the kernel's, and the kernel's half of a PGD is copied each time. */
	bool top = cache == caches + LEVEL_PGD || cache == caches + LEVEL_USER_PGD;
	size_t bytes = top ? PAGE_SIZE / 2 : PAGE_SIZE;

	if (!memchr_inv(page_address(page), 0, bytes))
		return;
	dirty_pages++;
	WARN_ONCE(1, "a %s page was freed with entries\n", cache->name);
	memset(page_address(page), 0, bytes);
}

struct page *cache_pop(enum level level)
{
	struct cache *cache = caches + level;
	struct page *page;

	if (!READ_ONCE(on))
		return NULL;
	if (unlikely(READ_ONCE(tracing)))
		trace_table(level, false);
	spin_lock(&cache->lock);
	if (unlikely(!cache->ready_count) && cache->fresh_count)
		make_ready(cache);
	page = list_first_entry_or_null(&cache->ready, struct page, lru);
	/* Somebody may walk the page still: then all that come after it were freed later. */
	if (unlikely(!page || page_ref_count(page) != 1)) {
		if (unlikely(READ_ONCE(adapts)))
			adapt_missed(&cache->adapt);
		if (++cache->misses % LOOK_EVERY == 0)
			schedule_work(&tidy_work);
		spin_unlock(&cache->lock);
		return NULL;
	}
	list_del(&page->lru);
	*state_of(page) &= ~STATE_LISTED;
	if (cache->counted)
		get_page(page);
	cache->ready_count--;
	if (unlikely(READ_ONCE(adapts)))
		adapt_taken(&cache->adapt, cache->ready_count + cache->fresh_count);
	cache->used++;
	cache->hits++;
	spin_unlock(&cache->lock);
	if (unlikely(verify))
		look_at(cache, page);
	return page;
}

/* Whether a page may be the cache's from now on. Nobody who was charged for it pays for the next use. */
static bool may_adopt(struct page *page)
{
#ifdef CONFIG_MEMCG
	return !READ_ONCE(page->memcg_data);
#else
	return true;
#endif
}

static bool exceeds(void)
{
	unsigned long count;

	if (!threshold && !threshold_percent)
		return false;
	count = cache_count();
	if (threshold && count > threshold)
		return true;
	if (threshold_percent) {
		unsigned long used = 0;
		int level;

		for (level = 0; level < LEVELS; level++)
			used += READ_ONCE(caches[level].used);
		return count * 100 > used * threshold_percent;
	}
	return false;
}

/* A page that the cache had in use, or knows nothing of, is not its own any more. */
static void forget(struct page *page, u8 *state)
{
	if (*state & STATE_SEMI) {
		spin_lock(&hypercall_lock);
		batch[0] = pfn_to_mfn(page_to_pfn(page));
		call_batch(1, false);
		spin_unlock(&hypercall_lock);
	}
	*state = 0;
}

bool cache_push(enum level level, struct page *page)
{
	struct cache *cache = caches + level;
	u8 *state = state_of(page);
	bool taken;

	if (unlikely(READ_ONCE(tracing)) && READ_ONCE(on))
		trace_table(level, true);
	/* What has no reference of the cache's goes to the kernel's allocator when this says so. */
	if (!READ_ONCE(on) && (cache->counted || !*state))
		return false;
	spin_lock(&cache->lock);
	taken = on && (*state || may_adopt(page));
	if (likely(taken && *state)) {
		*state |= STATE_LISTED;
		list_add_tail(&page->lru, &cache->ready);
		cache->ready_count++;
		cache->used--;
	} else if (taken) {
		if (cache->counted)
			get_page(page);
		add_fresh(cache, page);
		if (cache->fresh_count >= FRESH_MOST)
			make_ready(cache);
	} else if (*state && !cache->counted) {
		cache->used--;
		forget(page, state);
	}
	cache->pushes += taken;
	spin_unlock(&cache->lock);
	if (unlikely(taken && exceeds()))
		schedule_work(&tidy_work);
	return taken;
}

/* A page of the lists goes back. Those that somebody walks still are free when he has left them. */
static void give_back(struct cache *cache, struct page *page)
{
	*state_of(page) = 0;
	if (PageTable(page))
		table_end(cache - caches, page);
	if (cache->counted)
		put_page(page);
	else
		__free_pages(page, cache->order);
}

/* With the level's lock. Its mark of what was needed is the caller's. */
static unsigned long shrink_locked(struct cache *cache, unsigned long count)
{
	struct page *page, *next;
	unsigned long freed = 0;
	LIST_HEAD(pages);

	/* What came last has been used last, and is given back last. */
	while (freed < count && (cache->ready_count || cache->fresh_count)) {
		struct list_head *from = cache->ready_count ? &cache->ready : &cache->fresh;

		list_move_tail(from->next, &pages);
		if (cache->ready_count)
			cache->ready_count--;
		else
			cache->fresh_count--;
		freed++;
	}
	/* The devices may have the pages before anybody else gets them. */
	set_semi(&pages, false);
	list_for_each_entry_safe(page, next, &pages, lru) {
		list_del(&page->lru);
		give_back(cache, page);
	}
	return freed;
}

static unsigned long cache_shrink_level(struct cache *cache, unsigned long count)
{
	unsigned long freed;

	spin_lock(&cache->lock);
	freed = shrink_locked(cache, count);
	adapt_removed(&cache->adapt, freed);
	spin_unlock(&cache->lock);
	return freed;
}

unsigned long cache_level_count(struct cache *cache)
{
	return READ_ONCE(cache->ready_count) + READ_ONCE(cache->fresh_count);
}

unsigned long cache_count(void)
{
	unsigned long count = 0;
	int level;

	for (level = 0; level < LEVELS; level++)
		count += cache_level_count(caches + level);
	return count;
}

/* From each level as much as it has of all. */
unsigned long cache_shrink(unsigned long count)
{
	unsigned long all = cache_count(), freed = 0;
	int level;

	for (level = 0; level < LEVELS && all; level++) {
		struct cache *cache = caches + level;
		unsigned long share = DIV_ROUND_UP(cache_level_count(cache) * min(count, all), all);

		freed += cache_shrink_level(cache, min(share, count - freed));
	}
	return freed;
}

static void find_strays(struct cache *cache);

static void tidy(struct work_struct *work)
{
	unsigned long count, keep, used = 0;
	int level;

	for (level = 0; level < LEVELS; level++)
		find_strays(caches + level);
	if (!threshold && !threshold_percent)
		return;
	keep = count = cache_count();
	for (level = 0; level < LEVELS; level++)
		used += READ_ONCE(caches[level].used);
	if (threshold)
		keep = min_t(unsigned long, keep, threshold);
	if (threshold_percent)
		keep = min(keep, used * threshold_percent / 100);
	/* An eighth more, so that this is not called again at once. */
	keep -= keep / 8;
	if (count > keep)
		cache_shrink(count - keep);
}

/* A step each second, while somebody wants them. */
static void await_step(void)
{
	if (READ_ONCE(adapts) || READ_ONCE(tracing))
		schedule_delayed_work(&step_work, round_jiffies_relative(HZ));
}

bool cache_adapts(void)
{
	return READ_ONCE(adapts);
}

void cache_adapt(bool yes)
{
	int level;

	for (level = 0; level < LEVELS && yes && !adapts; level++) {
		spin_lock(&caches[level].lock);
		adapt_begin(&caches[level].adapt, cache_level_count(caches + level));
		spin_unlock(&caches[level].lock);
	}
	WRITE_ONCE(adapts, yes);
	await_step();
}

int cache_trace(unsigned long kib)
{
	int error = trace_begin(kib);

	await_step();
	return error;
}

/* A second is over for a level. It is a function that is called, so that it can be counted from outside (docs/benchmarks.md). */
static noinline void cache_step(struct cache *cache)
{
	spin_lock(&cache->lock);
	cache->given_back += shrink_locked(cache, adapt_step(&cache->adapt, cache_level_count(cache)));
	spin_unlock(&cache->lock);
}

static void step(struct work_struct *work)
{
	int level;

	trace_second();
	for (level = 0; level < LEVELS && READ_ONCE(adapts); level++) {
		cache_step(caches + level);
		cond_resched();
	}
	await_step();
}

void fill_user_table(struct page *page)
{
	((pgd_t *)page_address(page))[pgd_index(VSYSCALL_ADDR)] = common_entry;
}

static struct page *new_page(struct cache *cache)
{
	struct page *page = alloc_pages(GFP_KERNEL | __GFP_ZERO, cache->order);

	if (page && cache == caches + LEVEL_USER_PGD)
		fill_user_table(page);
	return page;
}

static int grow(struct cache *cache, unsigned long count)
{
	/* Nobody else has them. */
	if (cache == caches + LEVEL_USER_PGD && !xen_pv_domain())
		return 0;
	while (cache_level_count(cache) < count) {
		struct page *page = new_page(cache);

		if (!page)
			return -ENOMEM;
		spin_lock(&cache->lock);
		add_fresh(cache, page);
		spin_unlock(&cache->lock);
	}
	spin_lock(&cache->lock);
	make_ready(cache);
	spin_unlock(&cache->lock);
	return 0;
}

/* Looks at all pages of a level that are not in its lists. */
static void for_each_used(struct cache *cache, void (*look)(struct cache *cache, struct page *page))
{
	unsigned long first, frame;

	for (first = 0; first < frames; first += LOOK) {
		spin_lock(&cache->lock);
		for (frame = first; frame < min(first + LOOK, frames); frame++)
			if ((states[frame] & ~STATE_SEMI) == cache - caches + 1)
				look(cache, pfn_to_page(frame));
		spin_unlock(&cache->lock);
		cond_resched();
	}
}

/* A table that is in use is the kernel's again. */
static void let_go_of(struct cache *cache, struct page *page)
{
	cache->used--;
	forget(page, state_of(page));
	if (cache->counted)
		put_page(page);
}

static void list_stray(struct cache *cache, struct page *page)
{
	if (page_ref_count(page) != 1)
		return;
	look_at(cache, page);
	cache->used--;
	*state_of(page) |= STATE_LISTED;
	list_add_tail(&page->lru, &cache->ready);
	cache->ready_count++;
}

/*
 * Pages that were not freed the usual way, as when two tasks made the same table at once: the reference of the cache's is the
 * last one they have.
 */
static void find_strays(struct cache *cache)
{
	if (cache->counted)
		for_each_used(cache, list_stray);
}

bool cache_is_on(void)
{
	return READ_ONCE(on);
}

int cache_switch(bool wanted)
{
	int level, error = 0;

	if (wanted && !patched)
		return -ENODEV;
	mutex_lock(&switch_lock);
	if (wanted && !on) {
		for (level = 0; level < LEVELS && !error; level++)
			error = grow(caches + level, prefill[level]);
	}
	/* Under every lock, so that whoever has one knows for as long as he has it. */
	for (level = 0; level < LEVELS; level++)
		spin_lock_nested(&caches[level].lock, level);
	WRITE_ONCE(on, wanted && !error);
	for (level = LEVELS - 1; level >= 0; level--)
		spin_unlock(&caches[level].lock);
	for (level = 0; level < LEVELS && !on; level++) {
		cache_shrink_level(caches + level, ULONG_MAX);
		for_each_used(caches + level, let_go_of);
	}
	mutex_unlock(&switch_lock);
	return error;
}

/* The kernel's functions are replaced from now on, or are about to be its own again. */
int cache_patched(bool yes)
{
	WRITE_ONCE(patched, yes);
	return cache_switch(yes);
}

int cache_resize(struct cache *cache, unsigned long count)
{
	unsigned long cached = cache_level_count(cache);
	int error = 0;

	mutex_lock(&switch_lock);
	if (!on)
		error = -ENODEV;
	else if (count < cached)
		cache_shrink_level(cache, cached - count);
	else
		error = grow(cache, count);
	mutex_unlock(&switch_lock);
	return error;
}

static unsigned long shrink_count(struct shrinker *shrinker, struct shrink_control *control)
{
	return cache_count() ?: SHRINK_EMPTY;
}

static unsigned long shrink_scan(struct shrinker *shrinker, struct shrink_control *control)
{
	return cache_shrink(control->nr_to_scan) ?: SHRINK_STOP;
}

static const struct shrinker shrinker_model = {
	.count_objects = shrink_count,
	.scan_objects = shrink_scan,
	.seeks = DEFAULT_SEEKS,
};

static struct shrinker *shrinker;

/* Whether there is a hypervisor that has semi-writable pages: of no page at first. */
static bool has_semi(void)
{
	return xen_pv_domain() &&
	       !xen_single_call(SLUICE_SEMI_WRITABLE, (unsigned long)batch, 0, SLUICE_SEMI_SET, 0, 0);
}

int cache_begin(unsigned long all)
{
	int level;

	for (level = 0; level < LEVELS; level++) {
		spin_lock_init(&caches[level].lock);
		INIT_LIST_HEAD(&caches[level].ready);
		INIT_LIST_HEAD(&caches[level].fresh);
	}
	semi = semi && has_semi();
	if (xen_pv_domain()) {
		pgd_t *model = (pgd_t *)virt_to_page(current->mm->pgd)->private;

		common_entry = model[pgd_index(VSYSCALL_ADDR)];
	}
	frames = all;
	states = vzalloc(frames);
	if (!states)
		return -ENOMEM;
	shrinker = start_shrinker(&shrinker_model);
	if (shrinker)
		return 0;
	vfree(states);
	return -ENOMEM;
}

/* Nothing of the kernel's comes here any more, and the cache is off. */
void cache_end(void)
{
	end_shrinker(shrinker);
	/* Nobody wants steps any more. */
	cache_adapt(false);
	trace_begin(0);
	cancel_delayed_work_sync(&step_work);
	cancel_work_sync(&tidy_work);
	vfree(states);
}
