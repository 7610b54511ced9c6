/* SPDX-License-Identifier: GPL-2.0-only */
/* What Linux 6.1 and Linux 6.12 call differently. */
#ifndef _SLUICE_PIBOOSTER_KERNELS_H
#define _SLUICE_PIBOOSTER_KERNELS_H

#include <linux/mm.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "level.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)

/* A page becomes a page table for the kernel, beside its entries. Returns false if there is no memory for its lock. */
static inline bool table_begin(enum level level, struct page *page)
{
	switch (level) {
	case LEVEL_PTE:
		return pgtable_pte_page_ctor(page);
	case LEVEL_PMD:
		return pgtable_pmd_page_ctor(page);
	default:
		return true;
	}
}

/* It is none any more. */
static inline void table_end(enum level level, struct page *page)
{
	if (level == LEVEL_PTE)
		pgtable_pte_page_dtor(page);
	if (level == LEVEL_PMD)
		pgtable_pmd_page_dtor(page);
}

/* Whose it is, and its place in the list of all PGDs. */
static inline void pgd_belongs(struct page *page, struct mm_struct *mm)
{
	page->pt_mm = mm;
}

static inline struct list_head *pgd_link(struct page *page)
{
	return &page->lru;
}

/* A shrinker like this one, at work; or NULL. */
static inline struct shrinker *start_shrinker(const struct shrinker *model)
{
	struct shrinker *shrinker = kmemdup(model, sizeof(*model), GFP_KERNEL);

	if (shrinker && register_shrinker(shrinker, KBUILD_MODNAME)) {
		kfree(shrinker);
		return NULL;
	}
	return shrinker;
}

static inline void end_shrinker(struct shrinker *shrinker)
{
	unregister_shrinker(shrinker);
	kfree(shrinker);
}

#else

static inline bool table_begin(enum level level, struct page *page)
{
	switch (level) {
	case LEVEL_PTE:
		return pagetable_pte_ctor(page_ptdesc(page));
	case LEVEL_PMD:
		return pagetable_pmd_ctor(page_ptdesc(page));
	case LEVEL_PUD:
		pagetable_pud_ctor(page_ptdesc(page));
		return true;
	default:
		return true;
	}
}

static inline void table_end(enum level level, struct page *page)
{
	if (level == LEVEL_PTE)
		pagetable_pte_dtor(page_ptdesc(page));
	if (level == LEVEL_PMD)
		pagetable_pmd_dtor(page_ptdesc(page));
	if (level == LEVEL_PUD)
		pagetable_pud_dtor(page_ptdesc(page));
}

static inline void pgd_belongs(struct page *page, struct mm_struct *mm)
{
	page_ptdesc(page)->pt_mm = mm;
}

static inline struct list_head *pgd_link(struct page *page)
{
	return &page_ptdesc(page)->pt_list;
}

static inline struct shrinker *start_shrinker(const struct shrinker *model)
{
	struct shrinker *shrinker = shrinker_alloc(0, KBUILD_MODNAME);

	if (shrinker) {
		shrinker->count_objects = model->count_objects;
		shrinker->scan_objects = model->scan_objects;
		shrinker->seeks = model->seeks;
		shrinker_register(shrinker);
	}
	return shrinker;
}

static inline void end_shrinker(struct shrinker *shrinker)
{
	shrinker_free(shrinker);
}

#endif
#endif
