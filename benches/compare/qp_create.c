/* Makes queue pairs with one thread or several, and says how long each one took: `qp_create DEVICE PAIRS THREADS`.
 *
 * Each thread makes its share of reliable queue pairs that have a completion queue in common, and takes them to INIT. */

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct share {
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp **pairs;
    int count;
};

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void *make(void *arg)
{
    struct share *share = arg;

    for (int i = 0; i < share->count; i++) {
        struct ibv_qp_init_attr init = {
            .send_cq = share->cq,
            .recv_cq = share->cq,
            .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
            .qp_type = IBV_QPT_RC,
        };
        struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
        struct ibv_qp *pair = ibv_create_qp(share->pd, &init);

        if (!pair)
            die("ibv_create_qp");
        if (ibv_modify_qp(pair, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
            die("ibv_modify_qp");
        share->pairs[i] = pair;
    }
    return NULL;
}

static struct ibv_context *open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    for (int i = 0; list && list[i]; i++)
        if (!strcmp(ibv_get_device_name(list[i]), name))
            return ibv_open_device(list[i]);
    return NULL;
}

int main(int argc, char **argv)
{
    int pairs = argc > 2 ? atoi(argv[2]) : 0, threads = argc > 3 ? atoi(argv[3]) : 0;

    if (pairs < 1 || threads < 1 || threads > 64 || pairs % threads) {
        fprintf(stderr, "usage: qp_create DEVICE PAIRS THREADS; THREADS divides PAIRS\n");
        return 2;
    }
    struct ibv_context *context = open_device(argv[1]);
    struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
    struct ibv_cq *cq = pd ? ibv_create_cq(context, 64, NULL, NULL, 0) : NULL;
    struct ibv_qp **all = calloc(pairs, sizeof(*all));
    pthread_t ids[64];
    struct share shares[64];
    struct timespec start, end;

    if (!cq || !all)
        die(argv[1]);
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < threads; i++) {
        shares[i] = (struct share){ pd, cq, all + i * (pairs / threads), pairs / threads };
        if (pthread_create(&ids[i], NULL, make, &shares[i]))
            die("pthread_create");
    }
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double us = (end.tv_sec - start.tv_sec) * 1e6 + (end.tv_nsec - start.tv_nsec) / 1e3;

    printf("{\"program\":\"qp_create\",\"pairs\":%d,\"threads\":%d,\"us_each\":%.3f}\n", pairs, threads, us / pairs);
    for (int i = 0; i < pairs; i++)
        ibv_destroy_qp(all[i]);
    return 0;
}
