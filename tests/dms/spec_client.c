/* A client of DMS in C that knows the specification and nothing else: no extension, no broker's code.
 *
 *     spec_client PORT QUEUE MESSAGES
 *
 * The life of a queue: made, listed, filled, taken by competing consumers (one connection a thread), given back
 * and acknowledged, refused where the specification refuses, deleted. Exit 0: everything was as it has to be;
 * else 1, and the line on standard error says what was not.
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HANDSHAKE = 0x01, CREATE = 0x11, DELETE = 0x13, LIST = 0x15, PRODUCE = 0x21, CONSUME = 0x31,
       DELIVER = 0x34, ACK = 0x41, NACK = 0x43, DISCONNECT = 0x51, ERROR = 0xFE };
enum { OK, QUEUE_FULL, QUEUE_NOT_FOUND, QUEUE_EXISTS, TIMEOUT, PROTOCOL_ERROR };
#define MAGIC 0xDEADBEEFu
#define PAYLOAD_MAX 4096
#define CONSUMERS 4
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s\n", __LINE__, #what); exit(1); } } while (0)

struct header {
    uint32_t magic, length;
    uint8_t type, version;
    uint16_t status;
    uint32_t id;
} __attribute__((packed));

struct frame {
    struct header head; /* in this machine's byte order */
    char payload[PAYLOAD_MAX + 1];
};

static uint16_t port;
static const char *queue;
static int messages;
static _Atomic int seen[100000];

static void send_all(int fd, const void *data, size_t size, int flags) {
    for (size_t done = 0; done < size;) {
        ssize_t sent = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL | flags);
        CHECK(sent > 0);
        done += (size_t)sent;
    }
}

static void receive_all(int fd, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t got = recv(fd, (char *)data + done, size - done, 0);
        CHECK(got > 0);
        done += (size_t)got;
    }
}

static void request(int fd, int type, uint32_t id, const char *name, const char *body) {
    char payload[PAYLOAD_MAX];
    size_t size = 0;
    if (name) {
        uint16_t length = htons((uint16_t)strlen(name));
        memcpy(payload, &length, 2);
        memcpy(payload + 2, name, strlen(name));
        size = 2 + strlen(name);
    }
    if (body) {
        memcpy(payload + size, body, strlen(body));
        size += strlen(body);
    }
    struct header head = {htonl(MAGIC), htonl((uint32_t)size), (uint8_t)type, 1, 0, htonl(id)};
    send_all(fd, &head, sizeof head, size ? MSG_MORE : 0); /* else each waits for a delayed acknowledgement */
    send_all(fd, payload, size, 0);
}

static void receive(int fd, struct frame *in) {
    receive_all(fd, &in->head, sizeof in->head);
    in->head.magic = ntohl(in->head.magic);
    in->head.length = ntohl(in->head.length);
    in->head.status = ntohs(in->head.status);
    in->head.id = ntohl(in->head.id);
    CHECK(in->head.magic == MAGIC && in->head.version == 1 && in->head.length <= PAYLOAD_MAX);
    receive_all(fd, in->payload, in->head.length);
    in->payload[in->head.length] = 0;
}

/* One request and its answer: the next type, or ERROR with the status. */
static void expect(int fd, int type, uint32_t id, const char *name, const char *body, int status) {
    struct frame in;
    request(fd, type, id, name, body);
    receive(fd, &in);
    CHECK(in.head.id == id);
    CHECK(in.head.status == status);
    CHECK(in.head.type == (status ? ERROR : type + 1));
}

static int connected(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to));
    expect(fd, HANDSHAKE, 1, NULL, NULL, OK);
    return fd;
}

static void farewell(int fd) {
    char end;
    expect(fd, DISCONNECT, 9, NULL, NULL, OK);
    CHECK(recv(fd, &end, 1, 0) == 0);
    close(fd);
}

/* Takes its share; the first of each connection is given back once. */
static void *consume(void *share) {
    int fd = connected(), given_back = 0;
    for (int left = *(int *)share; left > 0;) {
        struct frame in;
        request(fd, CONSUME, 1000 + (uint32_t)left, queue, NULL);
        receive(fd, &in);
        CHECK(in.head.type == DELIVER && in.head.status == OK);
        if (!given_back) {
            given_back = 1;
            expect(fd, NACK, in.head.id, NULL, NULL, OK);
            continue;
        }
        int number = atoi(in.payload + strlen("message "));
        CHECK(!strncmp(in.payload, "message ", 8) && number >= 0 && number < messages);
        CHECK(atomic_fetch_add(&seen[number], 1) == 0);
        expect(fd, ACK, in.head.id, NULL, NULL, OK);
        left--;
    }
    farewell(fd);
    return NULL;
}

static unsigned depth(int fd) {
    struct frame in;
    request(fd, LIST, 3, NULL, NULL);
    receive(fd, &in);
    CHECK(in.head.type == LIST + 1 && in.head.id == 3 && in.head.length == 2 + 2 + strlen(queue) + 4);
    CHECK(!memcmp(in.payload, "\0\1", 2) && !memcmp(in.payload + 4, queue, strlen(queue)));
    uint32_t found;
    memcpy(&found, in.payload + 4 + strlen(queue), 4);
    return ntohl(found);
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    port = (uint16_t)atoi(arguments[1]);
    queue = arguments[2];
    messages = atoi(arguments[3]);
    CHECK(messages > 0 && messages % CONSUMERS == 0 && messages <= 100000);
    int fd = connected();
    expect(fd, PRODUCE, 2, queue, "too early", QUEUE_NOT_FOUND);
    expect(fd, CREATE, 4, queue, NULL, OK);
    expect(fd, CREATE, 5, queue, NULL, QUEUE_EXISTS);
    expect(fd, ACK, 0x80000001u, NULL, NULL, PROTOCOL_ERROR);
    for (int number = 0; number < messages; number++) {
        char body[64];
        snprintf(body, sizeof body, "message %d", number);
        expect(fd, PRODUCE, 100 + (uint32_t)number, queue, body, OK);
    }
    CHECK(depth(fd) == (unsigned)messages);
    pthread_t threads[CONSUMERS];
    int share = messages / CONSUMERS;
    for (int each = 0; each < CONSUMERS; each++)
        CHECK(!pthread_create(&threads[each], NULL, consume, &share));
    for (int each = 0; each < CONSUMERS; each++)
        CHECK(!pthread_join(threads[each], NULL));
    CHECK(depth(fd) == 0);
    expect(fd, DELETE, 6, queue, NULL, OK);
    expect(fd, DELETE, 7, queue, NULL, QUEUE_NOT_FOUND);
    farewell(fd);
    return 0;
}
