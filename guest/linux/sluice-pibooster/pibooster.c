// SPDX-License-Identifier: GPL-2.0-only
/* The module: its parts begin and end, the cache before who fills it and last. */
#include <linux/module.h>

#include "pibooster.h"

static int __init pibooster_init(void)
{
	int error = sites_find() ?: cache_begin(sites_frames());

	if (error)
		return error;
	error = sysfs_begin();
	if (error)
		goto no_sysfs;
	error = sites_begin();
	if (error)
		goto no_sites;
	return 0;

no_sites:
	sysfs_end();
no_sysfs:
	cache_end();
	return error;
}

static void __exit pibooster_exit(void)
{
	sysfs_end();
	cache_end();
}

module_init(pibooster_init);
module_exit(pibooster_exit);
MODULE_DESCRIPTION("A cache of page-table pages, for paravirtual guests of Sluice");
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
