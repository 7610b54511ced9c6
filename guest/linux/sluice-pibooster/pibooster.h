/* SPDX-License-Identifier: GPL-2.0-only */
/* The cache of page-table pages, between its parts. */
#ifndef _SLUICE_PIBOOSTER_H
#define _SLUICE_PIBOOSTER_H

#include <linux/kobject.h>
#include <linux/list.h>
#include <linux/mm_types.h>
#include <linux/pgtable.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include "adapt.h"
#include "level.h"

/* Pages of one level that are ready to be page tables: empty, and semi-writable. */
struct cache {
	const char *name;
	unsigned int order; /* of its blocks, the first page of which is the table */
	bool counted; /* the cache has a reference of its own to each page */

	spinlock_t lock;
	struct list_head ready;
	struct list_head fresh; /* not semi-writable yet */
	unsigned int ready_count;
	unsigned int fresh_count;
	unsigned int used; /* page tables that came from here and come back */

	u64 hits;
	u64 misses;
	u64 pushes;

	struct adapt adapt;
	u64 given_back; /* pages, by what it was adapted to */

	struct kobject kobject;
};

extern struct cache caches[LEVELS];

/* What was asked of the hypervisor. */
extern u64 semi_calls, semi_frames;
/* Pages that were not as empty as they should be, if it is looked at. */
extern u64 dirty_pages;
/* The cache shrinks by itself to so many pages, and to so many percent of the page tables in use; 0: it does not. */
extern unsigned int threshold, threshold_percent;

/* Instead, each level keeps as many as it needed lately (adapt.h). */
bool cache_adapts(void);
void cache_adapt(bool yes);
/* As trace_begin (trace.h), with the seconds that a record needs. */
int cache_trace(unsigned long kib);

/* An empty cache, which is off, on a machine with so many frames. */
int cache_begin(unsigned long frames);
void cache_end(void);

/* Puts into a fresh table of a program's own addresses the one entry that is the kernel's, and the same in all. */
void fill_user_table(struct page *page);

/* The kernel's functions lead here, or are about to do so no more. */
int cache_patched(bool yes);
/* From now on page tables come from the cache and go to it; or do not, and all pages are given back. */
int cache_switch(bool on);
bool cache_is_on(void);

/* A page for a table, or NULL. */
struct page *cache_pop(enum level level);
/* A table is empty, and nothing new will be in it. Returns false if its memory is to be freed as ever. */
bool cache_push(enum level level, struct page *page);

unsigned long cache_count(void);
/* Gives so many pages back. Returns how many there were. */
unsigned long cache_shrink(unsigned long count);
unsigned long cache_level_count(struct cache *cache);
/* Has so many pages of a level. */
int cache_resize(struct cache *cache, unsigned long count);

/* Finds data of the kernel's; how many frames it has. */
int sites_find(void);
unsigned long sites_frames(void);
/* The functions of the kernel that allocate and free page tables are replaced, once all tasks are outside of them. */
int sites_begin(void);

int sysfs_begin(void);
void sysfs_end(void);

#endif
