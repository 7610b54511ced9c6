/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Looks at what a program that is linked with EGL and libdrm shows on a screen, by
 * LD_PRELOAD: reads each picture back before it is handed over, and says at the end
 * what came of it, in a line that a scenario can expect:
 *
 *   look_pictures  how many were drawn
 *   look_digest    of the pixels of all
 *   look_modes, look_flips, look_commits
 *                  calls that set a mode, flipped a page and committed a state
 *   look_failed    such calls that failed. A program may go on, and print rates
 *
 * With LOOK=calls pictures are not read, and only calls are counted.
 *
 * Sources: EGL 1.5, 3.10.1; OpenGL ES 2.0, 4.3.1; libdrm's xf86drmMode.h, from which
 * the calls are declared again here.
 */
#define _GNU_SOURCE
#include <EGL/egl.h>
#include <GLES2/gl2.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t digest = 0xcbf29ce484222325;
static unsigned int pictures, modes, flips, commits, failed;

/* The call that this library stands in front of. */
#define BEHIND(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* FNV-1a of 64 bits, of words. */
static void look(EGLDisplay display, EGLSurface surface)
{
	EGLint width, height;
	size_t count, i;
	uint32_t *pixels;

	if (!eglQuerySurface(display, surface, EGL_WIDTH, &width) ||
	    !eglQuerySurface(display, surface, EGL_HEIGHT, &height))
		return;
	count = (size_t)width * height;
	pixels = malloc(count * sizeof(*pixels));
	if (!pixels)
		return;
	glReadPixels(0, 0, width, height, GL_RGBA, GL_UNSIGNED_BYTE, pixels);
	for (i = 0; i < count; i++)
		digest = (digest ^ pixels[i]) * 0x100000001b3;
	free(pixels);
	pictures++;
}

EGLBoolean eglSwapBuffers(EGLDisplay display, EGLSurface surface)
{
	const char *what = getenv("LOOK");

	if (!what || strcmp(what, "calls"))
		look(display, surface);
	return BEHIND(eglSwapBuffers)(display, surface);
}

static int counted(unsigned int *count, int result)
{
	(*count)++;
	failed += result != 0;
	return result;
}

int drmModeSetCrtc(int fd, uint32_t crtc, uint32_t buffer, uint32_t x, uint32_t y,
		   uint32_t *connectors, int count, void *mode);
int drmModeSetCrtc(int fd, uint32_t crtc, uint32_t buffer, uint32_t x, uint32_t y,
		   uint32_t *connectors, int count, void *mode)
{
	return counted(&modes, BEHIND(drmModeSetCrtc)(fd, crtc, buffer, x, y,
						      connectors, count, mode));
}

int drmModePageFlip(int fd, uint32_t crtc, uint32_t buffer, uint32_t flags, void *data);
int drmModePageFlip(int fd, uint32_t crtc, uint32_t buffer, uint32_t flags, void *data)
{
	return counted(&flips, BEHIND(drmModePageFlip)(fd, crtc, buffer, flags, data));
}

int drmModeAtomicCommit(int fd, void *request, uint32_t flags, void *data);
int drmModeAtomicCommit(int fd, void *request, uint32_t flags, void *data)
{
	return counted(&commits, BEHIND(drmModeAtomicCommit)(fd, request, flags, data));
}

__attribute__((destructor)) static void tell(void)
{
	if (pictures + modes + flips + commits == 0)
		return;
	printf("SLUICE-RESULT look_pictures=%u look_digest=%016llx look_modes=%u look_flips=%u look_commits=%u look_failed=%u\n",
	       pictures, (unsigned long long)digest, modes, flips, commits, failed);
	fflush(stdout);
}
