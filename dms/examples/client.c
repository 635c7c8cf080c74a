/* A client of DMS in C: its few functions, and a program that uses them. It needs nothing but a POSIX system.
 *
 *     cc -O2 -o client client.c
 *     ./client 127.0.0.1 9090 create orders
 *     ./client 127.0.0.1 9090 produce orders 'two teas' 'one coffee'
 *     ./client 127.0.0.1 9090 list
 *     ./client 127.0.0.1 9090 consume orders 2      # prints and acknowledges two messages; 0: goes on for ever
 *     ./client 127.0.0.1 9090 nack orders           # prints one, and gives it back
 *     ./client 127.0.0.1 9090 delete orders
 *
 * Exit code 0: done; 1: refused, or the connection was lost, with a line on standard error; 2: wrong usage.
 * With -DDMS_LIBRARY there is no main(), for a program of your own that includes this file.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum dms_type {
    DMS_HANDSHAKE = 0x01, DMS_CREATE_QUEUE = 0x11, DMS_DELETE_QUEUE = 0x13, DMS_LIST_QUEUES = 0x15,
    DMS_PRODUCE = 0x21, DMS_CONSUME = 0x31, DMS_DELIVER = 0x34, DMS_ACK = 0x41, DMS_NACK = 0x43,
    DMS_DISCONNECT = 0x51, DMS_ERROR = 0xFE,
    /* of the extension for jobs */
    DMS_PRODUCE_WITH = 0x23, DMS_CONSUME_WITH = 0x33, DMS_DELIVER_WITH = 0x36, DMS_TOUCH = 0x45, DMS_CANCEL = 0x47,
    DMS_RESCHEDULE = 0x49, DMS_GET_JOB = 0x4B, DMS_GET_JOB_OK = 0x4C
};
enum { DMS_OK = 0, DMS_TIMEOUT = 4, DMS_TOO_LARGE = 8, DMS_LOST = -1 };
#define DMS_MAGIC 0xDEADBEEFu
#define DMS_HEADER 16
#define DMS_PAYLOAD_MAX 4096 /* of a request, and of an answer of the specification */
#define DMS_JOB_MAX 16384    /* of DELIVER_WITH and GET_JOB_OK */
#ifndef DMS_PATIENCE_SECONDS
#define DMS_PATIENCE_SECONDS 10 /* for the answer to the handshake: another protocol's server may give none */
#endif

static const char *const dms_statuses[] = {
    "OK", "QUEUE_FULL", "QUEUE_NOT_FOUND", "QUEUE_EXISTS", "TIMEOUT", "PROTOCOL_ERROR",
    "BAD_MAGIC", "VERSION_MISMATCH", "PAYLOAD_TOO_LARGE", "INVALID_TYPE", "INTERNAL"};

struct dms {
    int socket;
    uint32_t last_id;              /* of a request */
    int type;                      /* of the last answer, as all below */
    uint32_t id;                   /* of DELIVER: the delivery, for dms_settle() */
    size_t length;
    char payload[DMS_JOB_MAX + 1]; /* a body, or the text of an error; a NUL is behind it */
};

static void dms_put(char *to, uint32_t value, int bytes) {
    for (int at = 0; at < bytes; at++)
        to[at] = (char)(value >> 8 * (bytes - 1 - at));
}

static uint32_t dms_get(const char *from, int bytes) {
    uint32_t value = 0;
    for (int at = 0; at < bytes; at++)
        value = value << 8 | (unsigned char)from[at];
    return value;
}

static int dms_receive_all(int fd, char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t received = recv(fd, data + done, size - done, 0);
        if (received <= 0)
            return DMS_LOST;
        done += (size_t)received;
    }
    return DMS_OK;
}

/* Send a request: a queue's name unless NULL, then a body. */
static int dms_send(struct dms *dms, int type, uint32_t id, const char *queue, const char *body, size_t size) {
    char frame[DMS_HEADER + DMS_PAYLOAD_MAX];
    size_t name = queue ? strlen(queue) : 0, length = (queue ? 2 + name : 0) + size;
    if (length > DMS_PAYLOAD_MAX) {
        strcpy(dms->payload, "a payload has at most 4096 bytes, the queue's name in it");
        return DMS_TOO_LARGE;
    }
    dms_put(frame, DMS_MAGIC, 4);
    dms_put(frame + 4, (uint32_t)length, 4);
    frame[8] = (char)type;
    frame[9] = 1; /* the version */
    dms_put(frame + 10, 0, 2);
    dms_put(frame + 12, id, 4);
    if (queue) {
        dms_put(frame + DMS_HEADER, (uint32_t)name, 2);
        memcpy(frame + DMS_HEADER + 2, queue, name);
    }
    if (size)
        memcpy(frame + DMS_HEADER + length - size, body, size);
    for (size_t done = 0; done < DMS_HEADER + length;) {
        ssize_t sent = send(dms->socket, frame + done, DMS_HEADER + length - done, MSG_NOSIGNAL);
        if (sent <= 0)
            return DMS_LOST;
        done += (size_t)sent;
    }
    return DMS_OK;
}

/* Wait for the next frame; its status. */
static int dms_receive(struct dms *dms) {
    char header[DMS_HEADER];
    strcpy(dms->payload, "the connection was lost");
    if (dms_receive_all(dms->socket, header, DMS_HEADER) || dms_get(header, 4) != DMS_MAGIC)
        return DMS_LOST;
    dms->length = dms_get(header + 4, 4);
    dms->type = (unsigned char)header[8];
    dms->id = dms_get(header + 12, 4);
    if (dms->length > DMS_JOB_MAX || dms_receive_all(dms->socket, dms->payload, dms->length))
        return DMS_LOST;
    dms->payload[dms->length] = 0;
    return (int)dms_get(header + 10, 2);
}

/* One request, and its answer: DMS_OK, the status of an ERROR, or DMS_LOST. */
static int dms_call(struct dms *dms, int type, const char *queue, const char *body, size_t size) {
    uint32_t id = ++dms->last_id & 0x7FFFFFFF; /* the first bit is for ids of deliveries */
    int status = dms_send(dms, type, id, queue, body, size);
    return status ? status : dms_receive(dms);
}

/* Take a message, which dms_settle() has to acknowledge or give back. DMS_TIMEOUT: there was none in time. */
static inline int dms_consume(struct dms *dms, const char *queue) {
    int status = dms_call(dms, DMS_CONSUME, queue, NULL, 0);
    return status || dms->type == DMS_DELIVER ? status : DMS_LOST;
}

/* A job: DMS_PRODUCE_WITH (object: when, key, name), or DMS_CANCEL, DMS_RESCHEDULE, DMS_GET_JOB (object: which), without
   a body. The object is JSON, as PROTOCOL.md has it under "Jobs". */
static inline int dms_call_job(struct dms *dms, int type, const char *queue, const char *object, const char *body,
                               size_t size) {
    char data[DMS_PAYLOAD_MAX];
    size_t length = strlen(object);
    if (2 + length + size > sizeof data) {
        strcpy(dms->payload, "a payload has at most 4096 bytes, the object in it");
        return DMS_TOO_LARGE;
    }
    dms_put(data, (uint32_t)length, 2);
    memcpy(data + 2, object, length);
    if (size)
        memcpy(data + 2 + length, body, size);
    return dms_call(dms, type, queue, data, 2 + length + size);
}

/* Of DELIVER_WITH (the answer of DMS_CONSUME_WITH) and GET_JOB_OK: the message, behind the object at payload + 2. */
static inline const char *dms_job_body(const struct dms *dms) {
    size_t at = 2 + dms_get(dms->payload, 2);
    return dms->payload + (at < dms->length ? at : dms->length);
}

/* Give a delivery back: not again before so long (0: as the queue has it), and why. */
static inline int dms_give_back(struct dms *dms, uint32_t delivery, uint32_t delay_ms, const char *why) {
    char data[4 + 500];
    size_t length = strlen(why) < 500 ? strlen(why) : 500;
    dms_put(data, delay_ms, 4);
    memcpy(data + 4, why, length);
    int status = dms_send(dms, DMS_NACK, delivery, "", data, 4 + length);
    return status ? status : dms_receive(dms);
}

/* DMS_ACK: the delivery is done with. DMS_NACK: it goes back to its old place. DMS_TOUCH: its time begins anew. */
static int dms_settle(struct dms *dms, uint32_t delivery, int type) {
    int status = dms_send(dms, type, delivery, NULL, NULL, 0);
    return status ? status : dms_receive(dms);
}

static int dms_connect(struct dms *dms, const char *host, const char *port) {
    struct addrinfo *first, *each, hints = {.ai_socktype = SOCK_STREAM};
    struct timeval patience = {.tv_sec = DMS_PATIENCE_SECONDS}, for_ever = {0};
    int on = 1, status;
    memset(dms, 0, sizeof *dms);
    strcpy(dms->payload, "no server answers there");
    dms->socket = -1;
    if (getaddrinfo(host, port, &hints, &first))
        return DMS_LOST;
    for (each = first; each && dms->socket < 0; each = each->ai_next) {
        int fd = socket(each->ai_family, each->ai_socktype, each->ai_protocol);
        if (fd >= 0 && !connect(fd, each->ai_addr, each->ai_addrlen))
            dms->socket = fd;
        else if (fd >= 0)
            close(fd);
    }
    freeaddrinfo(first);
    if (dms->socket < 0)
        return DMS_LOST;
    setsockopt(dms->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(dms->socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    status = dms_call(dms, DMS_HANDSHAKE, NULL, "example", 7);
    if (status == DMS_LOST) {
        strcpy(dms->payload, "no DMS server answers there");
        close(dms->socket);
        dms->socket = -1;
        return status;
    }
    setsockopt(dms->socket, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof for_ever);
    return status;
}

static void dms_close(struct dms *dms) {
    if (dms->socket >= 0) {
        dms_call(dms, DMS_DISCONNECT, NULL, NULL, 0);
        close(dms->socket);
    }
}

#ifndef DMS_LIBRARY
/* Take messages, print each, and settle it. */
static int take(struct dms *dms, const char *queue, long count, int how) {
    for (long number = 0; count == 0 || number < count; number++) {
        int status = dms_consume(dms, queue);
        if (status == DMS_TIMEOUT && count == 0) {
            number--;
            continue;
        }
        if (status)
            return status;
        fwrite(dms->payload, 1, dms->length, stdout);
        putchar('\n');
        if (fflush(stdout)) { /* what is acknowledged is out */
            strcpy(dms->payload, "standard output cannot be written");
            return DMS_LOST;
        }
        if ((status = dms_settle(dms, dms->id, how)))
            return status;
    }
    return DMS_OK;
}

static int list(struct dms *dms) {
    int status = dms_call(dms, DMS_LIST_QUEUES, NULL, NULL, 0);
    for (size_t at = 2; !status && at + 2 <= dms->length;) {
        size_t name = dms_get(dms->payload + at, 2);
        if (at + 2 + name + 4 > dms->length)
            return DMS_LOST;
        printf("%.*s %u\n", (int)name, dms->payload + at + 2, (unsigned)dms_get(dms->payload + at + 2 + name, 4));
        at += 2 + name + 4;
    }
    return status;
}

/* Whether the words behind HOST and PORT are a command; `number`: the COUNT of consume, 1 unless given. */
static int is_command(int count, char **words, long *number) {
    static const char *const names[] = {"list", "create", "delete", "nack", "consume", "produce"};
    static const int least[] = {1, 2, 2, 2, 2, 3}, most[] = {1, 2, 2, 2, 3, 1 << 30};
    char *end = "";
    int what = 0;
    while (what < 6 && (count < 1 || strcmp(words[0], names[what])))
        what++;
    *number = 1;
    if (what == 4 && count == 3 && ((*number = strtol(words[2], &end, 10)), end == words[2]))
        *number = -1;
    return what < 6 && count >= least[what] && count <= most[what] && !*end && *number >= 0;
}

int main(int count, char **words) {
    struct dms dms;
    long number;
    if (!is_command(count - 3, words + 3, &number)) {
        fprintf(stderr, "usage: %s HOST PORT list | create|delete|nack QUEUE | consume QUEUE [COUNT] | produce QUEUE TEXT...\n",
                words[0]);
        return 2;
    }
    const char *what = words[3], *queue = words[4];
    int status = dms_connect(&dms, words[1], words[2]);
    if (status)
        ;
    else if (!strcmp(what, "list"))
        status = list(&dms);
    else if (!strcmp(what, "create"))
        status = dms_call(&dms, DMS_CREATE_QUEUE, queue, NULL, 0);
    else if (!strcmp(what, "delete"))
        status = dms_call(&dms, DMS_DELETE_QUEUE, queue, NULL, 0);
    else if (!strcmp(what, "produce"))
        for (int at = 5; at < count && !status; at++)
            status = dms_call(&dms, DMS_PRODUCE, queue, words[at], strlen(words[at]));
    else if (!strcmp(what, "consume"))
        status = take(&dms, queue, number, DMS_ACK);
    else
        status = take(&dms, queue, 1, DMS_NACK);
    if (status)
        fprintf(stderr, "%s: %s\n", status > 0 && status <= 10 ? dms_statuses[status] : "refused or lost",
                dms.payload);
    dms_close(&dms);
    return status ? 1 : 0;
}
#endif
