// Command ports is a server inside a sandbox, on the port that is its argument: it shows what
// arrives there through whatever is in between.
package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/coder/websocket"
)

func main() {
	s := &server{next: make(chan struct{}), cancelled: make(chan struct{})}
	routes := http.NewServeMux()
	routes.HandleFunc("/echo/", echo)
	routes.HandleFunc("/events", s.events)
	routes.HandleFunc("/next", s.proceed)
	routes.HandleFunc("/digest", digest)
	routes.HandleFunc("/bytes", pattern)
	routes.HandleFunc("/websocket", echoMessages)
	routes.HandleFunc("/own", ownProtocol)
	routes.HandleFunc("/hold", s.hold)
	routes.HandleFunc("/held", s.held)
	routes.HandleFunc("/login", login)
	log.Fatal(http.ListenAndServe(":"+os.Args[1], routes))
}

type server struct{ next, cancelled chan struct{} }

// echo answers with the request as it came.
func echo(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%s %s\nHost: %s\n", r.Method, r.RequestURI, r.Host)
	r.Header.Write(w)
}

// events sends an event, and each further one only once it was asked to proceed.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range 3 {
		fmt.Fprintf(w, "data: %d\n\n", i)
		http.NewResponseController(w).Flush()
		select {
		case <-s.next:
		case <-r.Context().Done():
			return
		}
	}
}

func (s *server) proceed(_ http.ResponseWriter, r *http.Request) {
	select {
	case s.next <- struct{}{}:
	case <-r.Context().Done():
	}
}

// digest answers with the length and the SHA-256 digest of the body.
func digest(w http.ResponseWriter, r *http.Request) {
	sum := sha256.New()
	size, err := io.Copy(sum, r.Body)
	fmt.Fprintf(w, "%d %x %v", size, sum.Sum(nil), err)
}

// pattern answers with as many bytes as the query's size says: 0 to 250, again and again.
func pattern(w http.ResponseWriter, r *http.Request) {
	size, err := strconv.Atoi(r.URL.Query().Get("size"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	block := make([]byte, 251*100)
	for i := range block {
		block[i] = byte(i % 251)
	}
	for size > 0 {
		n, err := w.Write(block[:min(size, len(block))])
		if err != nil {
			return
		}
		size -= n
	}
}

func echoMessages(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil) // which demands that Origin is this server's own
	if err != nil {
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(1 << 20)
	for {
		kind, message, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		if err := conn.Write(r.Context(), kind, message); err != nil {
			return
		}
	}
}

// ownProtocol switches to a protocol in which the client says all it has to say, and then gets it
// back in capitals.
func ownProtocol(w http.ResponseWriter, _ *http.Request) {
	conn, stream, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	io.WriteString(conn,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n")
	said, err := io.ReadAll(stream)
	if err == nil || errors.Is(err, net.ErrClosed) {
		io.WriteString(conn, strings.ToUpper(string(said)))
	}
}

// hold answers its head and then nothing until its client leaves, which held reports.
func (s *server) hold(w http.ResponseWriter, r *http.Request) {
	http.NewResponseController(w).Flush()
	<-r.Context().Done()
	close(s.cancelled)
}

func (s *server) held(w http.ResponseWriter, r *http.Request) {
	select {
	case <-s.cancelled:
		io.WriteString(w, "cancelled")
	case <-r.Context().Done():
	}
}

// login sends the browser on, with a cookie for the whole host.
func login(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Set-Cookie", "session=1; Path=/; Domain=example.com")
	w.Header().Set("Clear-Site-Data", `"storage"`)
	w.Header().Set("Location", "/echo/home")
	w.WriteHeader(http.StatusSeeOther)
}
