// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cache below /sys/kernel/sluice_pibooster, for whoever administers the guest.
 *
 *   enabled            1 or 0: page tables come from the cache
 *   cached             pages in it; a smaller number that is written: it shrinks to that
 *   shrink_percent     written: so many percent of its pages are given back
 *   threshold          it shrinks by itself to so many pages; 0: it does not; auto: to what each level needed lately
 *   threshold_percent  the same to so many percent of the page tables in use that came from it
 *   semi_calls, semi_frames, dirty
 *                      calls of the hypervisor, frames that they made semi-writable; pages that were not empty, with `verify`
 *   trace_kib          KiB of a record of what tables come and go; written: a new one begins, of so many at most, or of 0 none
 *   trace              what was recorded
 *   pgd/, upgd/, pud/, pmd/, pte/
 *     cached           pages of that level; a number that is written: it shrinks or grows to that
 *     used             page tables in use that came from it
 *     hits, misses, pushes
 *     window           seconds that what it needed is looked for in, with the threshold `auto`
 *     given_back       pages that were given back by that
 */
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "pibooster.h"
#include "trace.h"

static ssize_t enabled_show(struct kobject *kobject, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%d\n", cache_is_on());
}

static ssize_t enabled_store(struct kobject *kobject, struct kobj_attribute *attribute, const char *text,
			     size_t len)
{
	bool wanted;
	int error = kstrtobool(text, &wanted) ?: cache_switch(wanted);

	return error ?: len;
}

static ssize_t cached_show(struct kobject *kobject, struct kobj_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%lu\n", cache_count());
}

static ssize_t cached_store(struct kobject *kobject, struct kobj_attribute *attribute, const char *text,
			    size_t len)
{
	unsigned long wanted, count = cache_count();
	int error = kstrtoul(text, 0, &wanted);

	if (error)
		return error;
	if (count > wanted)
		cache_shrink(count - wanted);
	return len;
}

static ssize_t shrink_percent_store(struct kobject *kobject, struct kobj_attribute *attribute,
				    const char *text, size_t len)
{
	unsigned int percent;
	int error = kstrtouint(text, 0, &percent);

	if (error)
		return error;
	if (percent > 100)
		return -EINVAL;
	cache_shrink(DIV_ROUND_UP(cache_count() * percent, 100));
	return len;
}

static ssize_t number_show(char *text, u64 number)
{
	return sysfs_emit(text, "%llu\n", number);
}

#define NUMBER(name, variable)                                                                     \
	static ssize_t name##_show(struct kobject *kobject, struct kobj_attribute *attribute,      \
				   char *text)                                                     \
	{                                                                                          \
		return number_show(text, variable);                                                \
	}                                                                                          \
	static struct kobj_attribute name##_attribute = __ATTR_RO(name)

NUMBER(semi_calls, semi_calls);
NUMBER(semi_frames, semi_frames);
NUMBER(dirty, dirty_pages);

#define LIMIT(name)                                                                                \
	static ssize_t name##_show(struct kobject *kobject, struct kobj_attribute *attribute,      \
				   char *text)                                                     \
	{                                                                                          \
		return number_show(text, name);                                                    \
	}                                                                                          \
	static ssize_t name##_store(struct kobject *kobject, struct kobj_attribute *attribute,     \
				    const char *text, size_t len)                                  \
	{                                                                                          \
		return kstrtouint(text, 0, &name) ?: len;                                          \
	}                                                                                          \
	static struct kobj_attribute name##_attribute = __ATTR_RW(name)

LIMIT(threshold_percent);

static ssize_t threshold_show(struct kobject *kobject, struct kobj_attribute *attribute, char *text)
{
	return cache_adapts() ? sysfs_emit(text, "auto\n") : number_show(text, threshold);
}

static ssize_t threshold_store(struct kobject *kobject, struct kobj_attribute *attribute, const char *text,
			       size_t len)
{
	bool adapts = sysfs_streq(text, "auto");
	unsigned int fixed = 0;
	int error = adapts ? 0 : kstrtouint(text, 0, &fixed);

	if (error)
		return error;
	threshold = fixed;
	cache_adapt(adapts);
	return len;
}
static struct kobj_attribute threshold_attribute = __ATTR_RW(threshold);

static ssize_t trace_kib_show(struct kobject *kobject, struct kobj_attribute *attribute, char *text)
{
	return number_show(text, trace_kib());
}

static ssize_t trace_kib_store(struct kobject *kobject, struct kobj_attribute *attribute, const char *text,
			       size_t len)
{
	unsigned long kib;
	int error = kstrtoul(text, 0, &kib) ?: cache_trace(kib);

	return error ?: len;
}
static struct kobj_attribute trace_kib_attribute = __ATTR_RW(trace_kib);

static ssize_t read_trace(struct file *file, struct kobject *kobject, struct bin_attribute *attribute,
			  char *to, loff_t offset, size_t count)
{
	return trace_read(to, offset, count);
}
static struct bin_attribute trace_attribute = { .attr = { .name = "trace", .mode = 0400 }, .read = read_trace };

static struct kobj_attribute enabled_attribute = __ATTR_RW(enabled);
static struct kobj_attribute cached_attribute = __ATTR_RW(cached);
static struct kobj_attribute shrink_percent_attribute = __ATTR_WO(shrink_percent);

static const struct attribute *attributes[] = {
	&enabled_attribute.attr,
	&cached_attribute.attr,
	&shrink_percent_attribute.attr,
	&threshold_attribute.attr,
	&threshold_percent_attribute.attr,
	&semi_calls_attribute.attr,
	&semi_frames_attribute.attr,
	&dirty_attribute.attr,
	&trace_kib_attribute.attr,
	NULL
};

/* What a level says of itself. */
struct level_attribute {
	struct attribute attribute;
	u64 (*show)(struct cache *cache);
};

static u64 level_cached(struct cache *cache)
{
	return cache_level_count(cache);
}

static u64 level_used(struct cache *cache)
{
	return READ_ONCE(cache->used);
}

static u64 level_hits(struct cache *cache)
{
	return READ_ONCE(cache->hits);
}

static u64 level_misses(struct cache *cache)
{
	return READ_ONCE(cache->misses);
}

static u64 level_pushes(struct cache *cache)
{
	return READ_ONCE(cache->pushes);
}

static u64 level_window(struct cache *cache)
{
	return READ_ONCE(cache->adapt.window);
}

static u64 level_given_back(struct cache *cache)
{
	return READ_ONCE(cache->given_back);
}

static struct level_attribute of_level[] = {
	{ { .name = "cached", .mode = 0644 }, level_cached },
	{ { .name = "used", .mode = 0444 }, level_used },
	{ { .name = "hits", .mode = 0444 }, level_hits },
	{ { .name = "misses", .mode = 0444 }, level_misses },
	{ { .name = "pushes", .mode = 0444 }, level_pushes },
	{ { .name = "window", .mode = 0444 }, level_window },
	{ { .name = "given_back", .mode = 0444 }, level_given_back },
};

static struct attribute *level_attrs[] = {
	&of_level[0].attribute, &of_level[1].attribute, &of_level[2].attribute,
	&of_level[3].attribute, &of_level[4].attribute, &of_level[5].attribute,
	&of_level[6].attribute, NULL
};
ATTRIBUTE_GROUPS(level);

static ssize_t level_show(struct kobject *kobject, struct attribute *attribute, char *text)
{
	struct level_attribute *known = container_of(attribute, struct level_attribute, attribute);

	return number_show(text, known->show(container_of(kobject, struct cache, kobject)));
}

/* Only the number of pages is written. */
static ssize_t level_store(struct kobject *kobject, struct attribute *attribute, const char *text,
			   size_t len)
{
	struct cache *cache = container_of(kobject, struct cache, kobject);
	unsigned long wanted;
	int error = kstrtoul(text, 0, &wanted);

	if (error)
		return error;
	if (wanted > totalram_pages() / 4)
		return -EINVAL;
	return cache_resize(cache, wanted) ?: len;
}

static const struct sysfs_ops level_operations = { .show = level_show, .store = level_store };

/* It is a part of the module, which outlives it. */
static void level_release(struct kobject *kobject)
{
}

static struct kobj_type level_type = {
	.sysfs_ops = &level_operations,
	.default_groups = level_groups,
	.release = level_release,
};

static struct kobject *folder;

void sysfs_end(void)
{
	int level;

	for (level = 0; level < LEVELS; level++)
		if (caches[level].kobject.state_initialized)
			kobject_put(&caches[level].kobject);
	sysfs_remove_bin_file(folder, &trace_attribute);
	sysfs_remove_files(folder, attributes);
	kobject_put(folder);
}

int sysfs_begin(void)
{
	int level, error;

	folder = kobject_create_and_add(KBUILD_MODNAME, kernel_kobj);
	if (!folder)
		return -ENOMEM;
	error = sysfs_create_files(folder, attributes) ?: sysfs_create_bin_file(folder, &trace_attribute);
	for (level = 0; level < LEVELS && !error; level++)
		error = kobject_init_and_add(&caches[level].kobject, &level_type, folder, "%s",
					     caches[level].name);
	if (error)
		sysfs_end();
	return error;
}
