package bodies_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"

	"sandbox.internal/test/wait"
)

// exchange is one run: what the client sends, and what the server makes of it.
type exchange struct {
	id      int
	status  int
	read    string // how much of the body the server reads: all, or a number of bytes
	answer  string // before, during or after the server has read that
	framing string // of the answer
	body    string // length, chunked, expect
	size    int
	client  string // fast, slow, deaf (reads nothing before it has sent all), gone
	random  *rand.Rand
}

func (x *exchange) String() string {
	return fmt.Sprintf("run %d: server reads %s, answers %d %s, %s; body %s of %d bytes, client %s", x.id, x.read, x.status, x.answer, x.framing,
		x.body, x.size, x.client)
}

func draw(id int, random *rand.Rand) *exchange {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	sizes := []int{1, 100, 5_000, 70_000, 300_000, 1_500_000}
	return &exchange{
		id: id, status: []int{200, 409, 501, 507}[random.IntN(4)], read: pick("all", "0", "1", "3000", "100000"),
		answer: pick("before", "during", "after"), framing: pick("length", "chunked"), body: pick("length", "chunked", "expect"),
		size: sizes[random.IntN(len(sizes))], client: pick("fast", "fast", "slow", "deaf", "gone"), random: random,
	}
}

// inner is what the body consists of: requests that must never be taken for one.
const inner = "GET /inner HTTP/1.1\r\nHost: inner\r\nX-Case: inner\r\n\r\n"

// run makes the exchange and a second one on the same connection where that is still open. The
// error says what was wrong about it.
func (x *exchange) run(route route) error {
	conn, err := net.DialTimeout("tcp", route.address, wait.Patience())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(wait.Deadline())
	reader := bufio.NewReader(conn)
	if _, err := io.WriteString(conn, x.head(route)); err != nil {
		return err
	}
	if x.body == "expect" {
		if proceed, err := x.awaitContinue(reader); err != nil || !proceed {
			return err
		}
	}
	sent := make(chan bool, 1)
	go func() { sent <- x.send(conn) }()
	whole := false
	if x.client == "deaf" || x.client == "gone" {
		whole = <-sent
	}
	if x.client == "gone" {
		return nil
	}
	reusable, err := x.receive(reader, x.id, x.status)
	if err != nil {
		return err
	}
	if x.client != "deaf" {
		if !reusable {
			conn.(*net.TCPConn).CloseWrite() // what is still being sent is of no use
		}
		whole = <-sent
	}
	if !reusable {
		return nothingFollows(reader)
	}
	if !whole {
		return fmt.Errorf("the connection may be used again, and the body could not be sent")
	}
	next := &exchange{id: -x.id, status: 200, read: "all", answer: "after", framing: "length", body: "length", size: 10}
	if _, err := io.WriteString(conn, next.head(route)+strings.Repeat("n", next.size)); err != nil {
		return fmt.Errorf("second request: %w", err)
	}
	if _, err := next.receive(reader, next.id, next.status); err != nil {
		return fmt.Errorf("second request on the connection: %w", err)
	}
	return nil
}

func (x *exchange) head(route route) string {
	var head strings.Builder
	fmt.Fprintf(&head, "POST %s/case HTTP/1.1\r\nHost: %s\r\n", route.path, route.host)
	for name, value := range route.headers {
		fmt.Fprintf(&head, "%s: %s\r\n", name, value)
	}
	fmt.Fprintf(&head, "X-Case: %d\r\nX-Status: %d\r\nX-Read: %s\r\nX-Answer: %s\r\nX-Framing: %s\r\n", x.id, x.status, x.read, x.answer, x.framing)
	switch x.body {
	case "chunked":
		head.WriteString("Transfer-Encoding: chunked\r\n")
	case "expect":
		head.WriteString("Expect: 100-continue\r\n")
		fallthrough
	default:
		fmt.Fprintf(&head, "Content-Length: %d\r\n", x.size)
	}
	return head.String() + "\r\n"
}

// awaitContinue reports whether the server wants the body. Otherwise it has answered, and the
// connection carries nothing else.
func (x *exchange) awaitContinue(reader *bufio.Reader) (bool, error) {
	start, err := reader.Peek(len("HTTP/1.1 100"))
	if err != nil {
		return false, fmt.Errorf("no answer to Expect: %w", err)
	}
	if string(start) == "HTTP/1.1 100" {
		for range 2 {
			if _, err := reader.ReadString('\n'); err != nil {
				return false, err
			}
		}
		return true, nil
	}
	reusable, err := x.receive(reader, x.id, x.status)
	if err == nil && reusable {
		err = fmt.Errorf("the connection stays open, on which a body was announced that is not sent")
	}
	return false, err
}

// send sends the body and reports whether all of it was. A client that is gone stops in the middle.
func (x *exchange) send(conn net.Conn) bool {
	body := bytes.Repeat([]byte(inner), x.size/len(inner)+1)[:x.size]
	pieces := 1
	if x.client != "fast" {
		pieces = 1 + x.random.IntN(4)
	}
	for i := range pieces {
		piece := body[len(body)*i/pieces : len(body)*(i+1)/pieces]
		if x.client == "gone" && i == pieces-1 {
			piece = piece[:len(piece)/2]
		}
		if x.body == "chunked" && len(piece) > 0 {
			if _, err := fmt.Fprintf(conn, "%x\r\n", len(piece)); err != nil {
				return false
			}
			if x.client == "slow" {
				x.pause() // the data of a chunk comes on its own
			}
		}
		if _, err := conn.Write(piece); err != nil {
			return false
		}
		if x.client == "gone" && i == pieces-1 {
			conn.Close()
			return false
		}
		if x.body == "chunked" && len(piece) > 0 {
			if _, err := io.WriteString(conn, "\r\n"); err != nil {
				return false
			}
		}
		x.pause()
	}
	if x.body == "chunked" {
		_, err := io.WriteString(conn, "0\r\n\r\n")
		return err == nil
	}
	return true
}

// pause is what makes a client slow. No result depends on how long it is.
func (x *exchange) pause() {
	if x.client == "slow" {
		time.Sleep(time.Duration(x.random.IntN(2000)) * time.Microsecond) // see above
	}
}

// receive reads the answer and reports whether the connection may be used again.
func (x *exchange) receive(reader *bufio.Reader, id, status int) (reusable bool, err error) {
	response, err := http.ReadResponse(reader, nil)
	for err == nil && response.StatusCode < 200 {
		response, err = http.ReadResponse(reader, nil)
	}
	if err != nil {
		return false, fmt.Errorf("no answer: %w", err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return false, fmt.Errorf("the answer %d breaks off: %w", response.StatusCode, err)
	}
	if response.StatusCode != status || string(body) != fmt.Sprintf("case %d", id) {
		return false, fmt.Errorf("the answer is %d %q", response.StatusCode, body)
	}
	return !response.Close, nil
}

// nothingFollows reads a connection that is about to be closed.
func nothingFollows(reader *bufio.Reader) error {
	rest, _ := io.ReadAll(reader) // a reset is an end as well
	if len(rest) > 0 {
		return fmt.Errorf("after the answer came %.200q", rest)
	}
	return nil
}
