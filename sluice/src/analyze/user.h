/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A program's memory, as the analyzer sees it: each way to reach it that the kernel
 * has as assembler statements is a call of a function here, with a number of bytes.
 * Put before a driver's source (clang's -include).
 */
#include <linux/types.h>
#include <linux/kernel.h>
#include <linux/sched.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

unsigned long sluice_from_user(void *to, const void *from, unsigned long bytes);
unsigned long sluice_to_user(void *to, const void *from, unsigned long bytes);

#define sluice_get(value, from)                                              \
	({                                                                   \
		__typeof__(*(from)) sluice_value;                            \
		int sluice_error = sluice_from_user((void *)&sluice_value,   \
						    (const void *)(from),    \
						    sizeof(sluice_value));   \
		(value) = (__typeof__(value))sluice_value;                   \
		sluice_error;                                                \
	})
#define sluice_put(value, to)                                                \
	({                                                                   \
		__typeof__(*(to)) sluice_value = (value);                    \
		(int)sluice_to_user((void *)(to),                            \
				    (const void *)&sluice_value,             \
				    sizeof(sluice_value));                   \
	})
#define FROM(to, from, bytes) \
	sluice_from_user((void *)(to), (const void *)(from), bytes)
#define TO(to, from, bytes) \
	sluice_to_user((void *)(to), (const void *)(from), bytes)

#undef get_user
#undef __get_user
#undef put_user
#undef __put_user
#undef copy_from_user
#undef copy_to_user
#undef __copy_from_user
#undef __copy_to_user
#undef __copy_from_user_inatomic
#undef __copy_from_user_inatomic_nocache
#undef __copy_to_user_inatomic
#undef copy_struct_from_user
#undef unsafe_get_user
#undef unsafe_put_user
#undef unsafe_copy_from_user
#undef unsafe_copy_to_user
#undef user_access_begin
#undef user_read_access_begin
#undef user_write_access_begin
#undef user_access_end
#undef user_read_access_end
#undef user_write_access_end
#undef __clear_user
#undef copy_from_user_nofault
#undef copy_to_user_nofault
#undef copy_safe_from_user_iter
#define get_user sluice_get
#define __get_user sluice_get
#define put_user sluice_put
#define __put_user sluice_put
#define copy_from_user FROM
#define copy_to_user TO
#define __copy_from_user FROM
#define __copy_to_user TO
#define __copy_from_user_inatomic FROM
#define __copy_from_user_inatomic_nocache FROM
#define __copy_to_user_inatomic TO
#define copy_from_user_nofault FROM
#define copy_to_user_nofault TO
#define copy_struct_from_user(to, size, from, bytes) FROM(to, from, bytes)
#define unsafe_get_user(value, from, label)                                  \
	do {                                                                 \
		if (sluice_get(value, from))                                 \
			goto label;                                          \
	} while (0)
#define unsafe_put_user(value, to, label)                                    \
	do {                                                                 \
		if (sluice_put(value, to))                                   \
			goto label;                                          \
	} while (0)
#define unsafe_copy_from_user(to, from, bytes, label)                        \
	do {                                                                 \
		if (FROM(to, from, bytes))                                   \
			goto label;                                          \
	} while (0)
#define unsafe_copy_to_user(to, from, bytes, label)                          \
	do {                                                                 \
		if (TO(to, from, bytes))                                     \
			goto label;                                          \
	} while (0)
#define user_access_begin(from, bytes) 1
#define user_read_access_begin(from, bytes) 1
#define user_write_access_begin(from, bytes) 1
#define user_access_end()
#define user_read_access_end()
#define user_write_access_end()
#define __clear_user clear_user
