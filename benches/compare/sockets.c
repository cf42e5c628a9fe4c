/* The floor under messages over TCP: the same exchanges with nothing but `send` and `recv`.
 *
 *   sockets latency   [--size 8,65536,...] [--iters N]   ping-pong; one way = half a round trip
 *   sockets bandwidth [--size ...] [--window W] [--iters N]
 *   sockets rate      [--iters N]                        windows of 64 messages of 8 bytes, in messages
 *
 * All take --wait spin|block, --cores 0,1 and --congestion NAME. Two processes, each bound to one core, have one connection
 * through the loopback interface, with TCP_NODELAY and the system's congestion control, which the MPI libraries have too.
 * --networks /run/netns/a,/run/netns/b puts each process into a network namespace, and --at ADDRESS is where the first listens.
 * `spin` calls `recv` without waiting until there is something, `block` sleeps in it. Samples, windows and warm-up are those
 * of p2p.c. Each message of a window is one call of `send`, as an MPI library makes them. The receiver takes whatever has come
 * of a window with one call, because a stream of bytes has no borders: it is the least that any library can need. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

enum { RATE_WINDOW = 64, ACK_BYTES = 4 };

struct end {
    int me;
    int socket;
    int flags; /* MSG_DONTWAIT if this end spins */
    char congestion[16];
    const char *wait;
};

static int retried(ssize_t result, const char *call)
{
    if (result >= 0)
        return 0;
    if (errno != EAGAIN && errno != EINTR)
        die(call, strerror(errno));
    return 1;
}

static void send_all(const struct end *end, const char *from, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(end->socket, from, bytes, end->flags | MSG_NOSIGNAL);
        if (retried(sent, "send"))
            continue;
        from += sent;
        bytes -= (size_t)sent;
    }
}

static void recv_all(const struct end *end, char *into, size_t bytes)
{
    while (bytes > 0) {
        ssize_t came = recv(end->socket, into, bytes, end->flags);
        if (retried(came, "recv"))
            continue;
        if (came == 0)
            die("recv", "the other process has ended");
        into += came;
        bytes -= (size_t)came;
    }
}

/* ---- latency ---- */

static void ping_pong(const struct end *end, char *out, char *in, long size, long iters, struct samples *s)
{
    for (long i = 0; i < iters; i++) {
        double start = now_us();
        if (end->me == 0)
            send_all(end, out, (size_t)size);
        recv_all(end, in, (size_t)size);
        if (end->me == 0)
            samples_push(s, (now_us() - start) / 2);
        else
            send_all(end, out, (size_t)size);
    }
}

static void latency(const struct end *end, long size, long iters)
{
    iters = iters ? iters : message_iters(size);
    char *out = room((size_t)size), *in = room((size_t)size);
    struct samples s = samples_new((int)iters);
    ping_pong(end, out, in, size, iters / 10 + 10, &s);
    s.len = 0;
    ping_pong(end, out, in, size, iters, &s);
    if (end->me == 0) {
        samples_sort(&s);
        printf("{\"program\":\"latency\",\"peer\":\"sockets\",\"wait\":\"%s\",\"congestion\":\"%s\",\"size\":%ld,"
               "\"median_us\":%.4f,\"min_us\":%.4f,\"p99_us\":%.4f,\"iters\":%d}\n",
               end->wait, end->congestion, size, samples_at(&s, 0.5), s.value[0], samples_at(&s, 0.99), s.len);
        fflush(stdout);
    }
    free(out), free(in), free(s.value);
}

/* ---- bandwidth, rate ---- */

static void window(const struct end *end, char *out, char *in, long size, long messages)
{
    char ack[ACK_BYTES] = {0};
    if (end->me == 0) {
        for (long i = 0; i < messages; i++)
            send_all(end, out, (size_t)size);
        recv_all(end, ack, sizeof ack);
    } else {
        recv_all(end, in, (size_t)(size * messages));
        send_all(end, ack, sizeof ack);
    }
}

/* Processor time of this process. */
static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Adds what the second process has used, on the first. */
static double cpu_of_both(const struct end *end, double mine)
{
    double theirs = 0;
    if (end->me)
        send_all(end, (const char *)&mine, sizeof mine);
    else
        recv_all(end, (char *)&theirs, sizeof theirs);
    return mine + theirs;
}

static void print_stream(const struct end *end, const char *program, long size, long messages, struct samples *s, double cpu)
{
    samples_sort(s);
    double median = samples_at(s, 0.5), best = s->value[0], slow = samples_at(s, 0.99), count = (double)messages;
    printf("{\"program\":\"%s\",\"peer\":\"sockets\",\"wait\":\"%s\",\"congestion\":\"%s\",\"size\":%ld,", program,
           end->wait, end->congestion, size);
    if (strcmp(program, "rate") == 0)
        printf("\"million_per_s\":%.4f,\"best_million_per_s\":%.4f,", count / median, count / best);
    else
        printf("\"mb_per_s\":%.1f,\"best_mb_per_s\":%.1f,\"cpu_s_per_gb\":%.4f,", count * (double)size / median,
               count * (double)size / best, cpu * 1e3 / (count * (double)size * s->len));
    printf("\"median_us\":%.4f,\"p99_us\":%.4f,\"window\":%ld,\"iters\":%d}\n", median, slow, messages, s->len);
    fflush(stdout);
}

static void stream(const struct end *end, const char *program, long size, long iters, long messages)
{
    iters = iters ? iters : message_iters(size) / 8;
    char *out = room((size_t)size), *in = room((size_t)(size * messages));
    struct samples s = samples_new((int)iters);
    double begun = cpu_us();
    for (long i = -(iters / 10 + 2); i < iters; i++) {
        double start = now_us();
        if (i == 0)
            begun = cpu_us();
        window(end, out, in, size, messages);
        if (i >= 0)
            samples_push(&s, now_us() - start);
    }
    double cpu = cpu_of_both(end, cpu_us() - begun);
    if (end->me == 0)
        print_stream(end, program, size, messages, &s, cpu);
    free(out), free(in), free(s.value);
}

/* ---- the connection ---- */

static int tcp_socket(const char *congestion)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        die("socket", strerror(errno));
    if (congestion && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, congestion, (socklen_t)strlen(congestion)) != 0)
        die("this process may not choose --congestion", congestion);
    return fd;
}

/* Moves this process to the network of its end, if there are networks: two paths with a comma between them. */
static void enter(const char *networks, int me)
{
    char path[256];
    const char *comma = networks ? strchr(networks, ',') : NULL;
    if (!networks)
        return;
    if (!comma)
        die("--networks takes two paths with a comma between them, not", networks);
    snprintf(path, sizeof path, "%.*s", me ? 255 : (int)(comma - networks), me ? comma + 1 : networks);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
        die(path, strerror(errno));
    close(fd);
}

/* Starts the second process. Both return, each with its end, on its core. */
static struct end connected(const long *core, const char *congestion, const char *networks, const char *address)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
        die("--at takes an IPv4 address, not", address);
    enter(networks, 0);
    int listener = tcp_socket(congestion);
    if (bind(listener, (struct sockaddr *)&at, len) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&at, &len) != 0)
        die("listen", strerror(errno));
    pid_t child = fork();
    if (child < 0)
        die("cannot start", "the second process");
    struct end end = {.me = child == 0};
    pin(core[end.me]);
    if (end.me)
        enter(networks, 1);
    end.socket = end.me ? tcp_socket(congestion) : accept(listener, NULL, NULL);
    if (end.socket < 0 || (end.me && connect(end.socket, (struct sockaddr *)&at, sizeof at) != 0))
        die("connect", strerror(errno));
    close(listener);
    int on = 1;
    setsockopt(end.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    len = sizeof end.congestion - 1;
    getsockopt(end.socket, IPPROTO_TCP, TCP_CONGESTION, end.congestion, &len);
    return end;
}

int main(int argc, char **argv)
{
    long core[NUMBERS_MAX], list[NUMBERS_MAX];
    if (numbers(option(argc, argv, "--cores", "0,1"), core) != 2)
        die("--cores takes two cores, such as 0,1, not", option(argc, argv, "--cores", "0,1"));
    const char *program = argc > 1 ? argv[1] : "latency", *wait = option(argc, argv, "--wait", "spin");
    if (strcmp(wait, "spin") != 0 && strcmp(wait, "block") != 0)
        die("--wait takes spin or block, not", wait);
    long iters = option_number(argc, argv, "--iters", 0), messages = option_number(argc, argv, "--window", RATE_WINDOW);
    int lengths = numbers(option(argc, argv, "--size", "8,65536"), list);
    if (messages < 1)
        die("--window takes a number of at least 1, not", "0");

    struct end end = connected(core, option(argc, argv, "--congestion", NULL), option(argc, argv, "--networks", NULL),
                               option(argc, argv, "--at", "127.0.0.1"));
    end.wait = wait;
    end.flags = strcmp(wait, "spin") == 0 ? MSG_DONTWAIT : 0;
    if (strcmp(program, "rate") == 0)
        stream(&end, program, 8, iters, RATE_WINDOW);
    else if (strcmp(program, "bandwidth") == 0)
        for (int i = 0; i < lengths; i++)
            stream(&end, program, list[i], iters, messages);
    else if (strcmp(program, "latency") == 0)
        for (int i = 0; i < lengths; i++)
            latency(&end, list[i], iters);
    else
        die("latency, bandwidth or rate, but not", program);
    close(end.socket);
    if (end.me == 0)
        waitpid(-1, NULL, 0);
    return 0;
}
