/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Looks at what a program that is linked with EGL and libdrm shows on a screen, by
 * LD_PRELOAD: reads each picture back before it is handed over, and says at the end
 * what came of it, in a line that a scenario can expect:
 *
 *   look_frames    how many ended
 *   look_pictures  how many of them were read
 *   look_digest    of the pixels of all
 *   look_modes, look_flips, look_commits
 *                  calls that set a mode, flipped a page and committed a state
 *   look_failed    such calls that failed. A program may go on, and print rates
 *
 * With LOOK=FRAMES pictures are not read. Marks for who counts instructions from
 * outside are set after the first few frames, and so many later. A frame ends when it
 * is handed over, or, of a program that draws on no screen, with a glFinish(), which
 * may be found by its name.
 *
 * Sources: EGL 1.5, 3.10.1 and 3.12; OpenGL ES 2.0, 4.3.1 and 5.1; dlsym(3); libdrm's
 * xf86drmMode.h, from which the calls are declared again here.
 */
#define _GNU_SOURCE
#include <EGL/egl.h>
#include <GLES2/gl2.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Frames before the first mark: caches are filled. */
#define FIRST 3

static uint64_t digest = 0xcbf29ce484222325;
static unsigned int frames, pictures, modes, flips, commits, failed;

static void *behind(void *library, const char *name)
{
	static void *(*find)(void *library, const char *name);

	/* The oldest of its versions is in every C library for this processor. */
	if (!find)
		*(void **)&find = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	return find(library, name);
}

/* The call that this library stands in front of. */
#define BEHIND(name) ((__typeof__(&name))behind(RTLD_NEXT, #name))

/* How many frames lie between the marks; 0: none are set, pictures are read. */
static unsigned int marked_frames(void)
{
	const char *wanted = getenv("LOOK");

	return wanted ? strtoul(wanted, NULL, 10) : 0;
}

/* Counts a frame, perhaps with a NOP that no compiler emits. */
static void end_frame(void)
{
	unsigned int marked = marked_frames();

	frames++;
	if (marked && (frames == FIRST || frames == FIRST + marked))
		__asm__ volatile(".byte 0x0f, 0x1f, 0x80, 0x4d, 0x41, 0x52, 0x4b" ::: "memory");
}

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
	EGLBoolean result;

	if (!marked_frames())
		look(display, surface);
	result = BEHIND(eglSwapBuffers)(display, surface);
	end_frame();
	return result;
}

void glFinish(void)
{
	BEHIND(glFinish)();
	end_frame();
}

__eglMustCastToProperFunctionPointerType eglGetProcAddress(const char *name)
{
	return strcmp(name, "glFinish") ? BEHIND(eglGetProcAddress)(name) :
					  (__eglMustCastToProperFunctionPointerType)glFinish;
}

void *dlsym(void *library, const char *name)
{
	if (!strcmp(name, "glFinish"))
		return glFinish;
	return strcmp(name, "eglGetProcAddress") ? behind(library, name) : eglGetProcAddress;
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
	if (frames + modes + flips + commits == 0)
		return;
	printf("SLUICE-RESULT look_frames=%u look_pictures=%u look_digest=%016llx look_modes=%u look_flips=%u look_commits=%u look_failed=%u\n",
	       frames, pictures, (unsigned long long)digest, modes, flips, commits, failed);
	fflush(stdout);
}
