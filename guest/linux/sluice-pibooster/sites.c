// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where the kernel allocates and frees page tables (arch/x86/mm/pgtable.c, arch/x86/xen/mmu_pv.c, mm/memory.c of Linux 6.1 and 6.12): replaced by a live patch, so that the
 * pages come from the cache and go to it. What the kernel does with a table besides is done here as there.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>
#include <linux/livepatch.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/version.h>
#include <asm/ibt.h>
#include <asm/pgalloc.h>
#include <asm/paravirt.h>

#include "kernels.h"
#include "pibooster.h"

#if (LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0) || LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)) && \
	(LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0) || LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0))
#error "these are the functions of Linux 6.1 and 6.12"
#endif

/* Of the kernel's own. */
static pgd_t *kernel_pgd;
static spinlock_t *all_pgds_lock;
static struct list_head *all_pgds;
static unsigned long *end_of_frames;

unsigned long sites_frames(void)
{
	return *end_of_frames;
}

/* A page for a table of this level, which becomes one unless it came from the cache as such. */
static struct page *as_table(enum level level, struct page *page)
{
	if (!page)
		return NULL;
	if (PageTable(page) || table_begin(level, page))
		return page;
	__free_page(page);
	return NULL;
}

static pgtable_t alloc_pte(struct mm_struct *mm)
{
	return as_table(LEVEL_PTE, cache_pop(LEVEL_PTE) ?: alloc_page(GFP_PGTABLE_USER));
}

/*
 * The page is free when everybody is known to have left it, which the cache sees by its
 * references; that is later than this.
 */
static void free_pte(struct mmu_gather *tlb, struct page *page)
{
	paravirt_release_pte(page_to_pfn(page));
	if (!cache_push(LEVEL_PTE, page))
		table_end(LEVEL_PTE, page);
	paravirt_tlb_remove_table(tlb, page);
}

static void free_pmd(struct mmu_gather *tlb, pmd_t *pmd)
{
	struct page *page = virt_to_page(pmd);

	paravirt_release_pmd(page_to_pfn(page));
	if (!cache_push(LEVEL_PMD, page))
		table_end(LEVEL_PMD, page);
	paravirt_tlb_remove_table(tlb, page);
}

static void free_pud(struct mmu_gather *tlb, pud_t *pud)
{
	struct page *page = virt_to_page(pud);

	paravirt_release_pud(page_to_pfn(page));
	if (!cache_push(LEVEL_PUD, page))
		table_end(LEVEL_PUD, page);
	paravirt_tlb_remove_table(tlb, page);
}

/* The kernel's own tables stay for good: they come from the kernel's allocator. */
static gfp_t table_flags(unsigned long address)
{
	return address < TASK_SIZE_MAX ? GFP_PGTABLE_USER : GFP_PGTABLE_KERNEL;
}

static int alloc_pmd(struct mm_struct *mm, pud_t *pud, unsigned long address)
{
	struct page *page = address < TASK_SIZE_MAX ? cache_pop(LEVEL_PMD) : NULL;
	spinlock_t *lock;

	page = as_table(LEVEL_PMD, page ?: alloc_page(table_flags(address)));
	if (!page)
		return -ENOMEM;
	lock = pud_lock(mm, pud);
	if (pud_present(*pud)) {
		pmd_free(mm, page_address(page));
	} else {
		mm_inc_nr_pmds(mm);
		/* The table is empty before it is seen, also by who takes no lock. */
		smp_wmb();
		pud_populate(mm, pud, page_address(page));
	}
	spin_unlock(lock);
	return 0;
}

static int alloc_pud(struct mm_struct *mm, p4d_t *p4d, unsigned long address)
{
	struct page *page = address < TASK_SIZE_MAX ? cache_pop(LEVEL_PUD) : NULL;

	page = as_table(LEVEL_PUD, page ?: alloc_page(table_flags(address)));
	if (!page)
		return -ENOMEM;
	spin_lock(&mm->page_table_lock);
	if (p4d_present(*p4d)) {
		pud_free(mm, page_address(page));
	} else {
		mm_inc_nr_puds(mm);
		smp_wmb();
		p4d_populate(mm, p4d, page_address(page));
	}
	spin_unlock(&mm->page_table_lock);
	return 0;
}

static void drop_pgd(struct page *page)
{
	if (!cache_push(LEVEL_PGD, page))
		__free_pages(page, PGD_ALLOCATION_ORDER);
}

static pgd_t *alloc_pgd(struct mm_struct *mm)
{
	struct page *page = cache_pop(LEVEL_PGD) ?: alloc_pages(GFP_PGTABLE_USER, PGD_ALLOCATION_ORDER);
	pgd_t *pgd;

	if (!page)
		return NULL;
	pgd = page_address(page);
	mm->pgd = pgd;
	if (paravirt_pgd_alloc(mm)) {
		drop_pgd(page);
		return NULL;
	}
	spin_lock(all_pgds_lock);
	clone_pgd_range(pgd + KERNEL_PGD_BOUNDARY, kernel_pgd + KERNEL_PGD_BOUNDARY, KERNEL_PGD_PTRS);
	pgd_belongs(page, mm);
	list_add(pgd_link(page), all_pgds);
	spin_unlock(all_pgds_lock);
	return pgd;
}

static void free_pgd(struct mm_struct *mm, pgd_t *pgd)
{
	struct page *page = virt_to_page(pgd);

	spin_lock(all_pgds_lock);
	list_del(pgd_link(page));
	spin_unlock(all_pgds_lock);
	paravirt_pgd_free(mm, pgd);
	drop_pgd(page);
}

/* The table that programs run with. The kernel's function fills in a page that everybody may read; it is in those of the cache, too. */
static int alloc_user_pgd(struct mm_struct *mm)
{
	struct page *page = cache_pop(LEVEL_USER_PGD);

	if (!page) {
		page = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!page)
			return -ENOMEM;
		fill_user_table(page);
	}
	virt_to_page(mm->pgd)->private = (unsigned long)page_address(page);
	return 0;
}

static void free_user_pgd(struct mm_struct *mm, pgd_t *pgd)
{
	struct page *kernels = virt_to_page(pgd);
	struct page *page;

	if (!kernels->private)
		return;
	page = virt_to_page((void *)kernels->private);
	kernels->private = 0;
	if (!cache_push(LEVEL_USER_PGD, page))
		__free_page(page);
}

static struct klp_func replaced[] = {
	{ .old_name = "pte_alloc_one", .new_func = alloc_pte },
	{ .old_name = "___pte_free_tlb", .new_func = free_pte },
	{ .old_name = "__pmd_alloc", .new_func = alloc_pmd },
	{ .old_name = "___pmd_free_tlb", .new_func = free_pmd },
	{ .old_name = "__pud_alloc", .new_func = alloc_pud },
	{ .old_name = "___pud_free_tlb", .new_func = free_pud },
	{ .old_name = "pgd_alloc", .new_func = alloc_pgd },
	{ .old_name = "pgd_free", .new_func = free_pgd },
	{ .old_name = "xen_pgd_alloc", .new_func = alloc_user_pgd },
	{ .old_name = "xen_pgd_free", .new_func = free_user_pgd },
	{ }
};

/* No task is in the kernel's functions any more. */
static void patched(struct klp_object *object)
{
	if (cache_patched(true))
		pr_warn("the cache stays off\n");
}

/* Tasks go back to the kernel's functions, which know nothing of the cache. */
static void unpatching(struct klp_object *object)
{
	cache_patched(false);
}

static struct klp_object objects[] = {
	{ .funcs = replaced, .callbacks = { .post_patch = patched, .pre_unpatch = unpatching } },
	{ }
};

static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

/* Data of the kernel's that it does not export. */
int sites_find(void)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	unsigned long (*lookup)(const char *name);
	int error = register_kprobe(&probe);

	if (error)
		return error;
	lookup = (void *)probe.addr;
	unregister_kprobe(&probe);
#ifdef CONFIG_X86_KERNEL_IBT
	/* A probe is behind the instruction that functions are called at. */
	if (is_endbr(*(u32 *)((void *)lookup - ENDBR_INSN_SIZE)))
		lookup = (void *)lookup - ENDBR_INSN_SIZE;
#endif
	kernel_pgd = (void *)lookup("init_top_pgt");
	all_pgds_lock = (void *)lookup("pgd_lock");
	all_pgds = (void *)lookup("pgd_list");
	end_of_frames = (void *)lookup("max_pfn");
	return kernel_pgd && all_pgds_lock && all_pgds && end_of_frames ? 0 : -ENOENT;
}

int sites_begin(void)
{
	return klp_enable_patch(&patch);
}
