/* What the programs of this folder share: a clock, samples with exact percentiles, arguments, cores.
 *
 * Every program prints one JSON object per figure, on one line, from rank 0 alone. Times are in microseconds. */
#ifndef RIPSTOP_COMPARE_COMMON_H
#define RIPSTOP_COMPARE_COMMON_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(OPEN_MPI)
#define PEER "openmpi"
#elif defined(MPICH_VERSION)
#define PEER "mpich"
#else
#define PEER "none"
#endif

static inline double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline void die(const char *what, const char *value)
{
    fprintf(stderr, "%s: %s\n", what, value);
    exit(2);
}

static inline void *room(size_t bytes)
{
    /* Page aligned, and touched, so that no first-touch fault lands in a measurement. */
    size_t pages = (bytes + 4095) / 4096 + 1;
    void *block = aligned_alloc(4096, pages * 4096);
    if (!block)
        die("no memory for a buffer of this many bytes", "see --size");
    memset(block, 1, pages * 4096);
    return block;
}

struct samples {
    double *value;
    int len;
    int room;
};

static inline struct samples samples_new(int room_for)
{
    struct samples s = {room(sizeof(double) * (size_t)room_for), 0, room_for};
    return s;
}

static inline void samples_push(struct samples *s, double value)
{
    if (s->len < s->room)
        s->value[s->len++] = value;
}

static inline int samples_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline void samples_sort(struct samples *s)
{
    qsort(s->value, (size_t)s->len, sizeof(double), samples_order);
}

/* Exact: the smallest sample that at least `share` of all samples do not exceed. Sort first. */
static inline double samples_at(const struct samples *s, double share)
{
    int i = (int)(share * s->len);
    return s->value[i < s->len ? i : s->len - 1];
}

/* `--name value`, or `otherwise` when it is not given. */
static inline const char *option(int argc, char **argv, const char *name, const char *otherwise)
{
    for (int i = 1; i + 1 < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return otherwise;
}

static inline long option_number(int argc, char **argv, const char *name, long otherwise)
{
    const char *text = option(argc, argv, name, NULL);
    if (!text)
        return otherwise;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 0)
        die("not a whole number of at least 0", text);
    return value;
}

#define NUMBERS_MAX 32

/* A list such as `8,4096`. Returns how many there are. */
static inline int numbers(const char *list, long *into)
{
    int len = 0;
    char *end = (char *)list;
    while (*end && len < NUMBERS_MAX) {
        const char *from = end;
        into[len] = strtol(from, &end, 10);
        if (end == from || into[len] < 0)
            die("not a list of whole numbers, such as 8,4096", list);
        len++;
        if (*end == ',')
            end++;
    }
    return len;
}

/* The number of samples for messages of this length, if `--iters` does not say. */
static inline long message_iters(long size)
{
    if (size <= 8192)
        return 20000;
    if (size <= 131072)
        return 4000;
    return size <= 1048576 ? 600 : 150;
}

static inline void pin(long core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        die("this process cannot be bound to one of the two cores", "see --cores");
}

#endif
