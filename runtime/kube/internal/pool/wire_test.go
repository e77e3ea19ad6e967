package pool_test

import (
	"errors"
	"net/http"
	"strings"
	"sync"
)

// wire is the transport of a controller to the API server. It counts writes, and can inject
// failures.
type wire struct {
	next http.RoundTripper

	mu     sync.Mutex
	closed bool
	writes map[string]int // by method and resource
	hook   func(request *http.Request, send func(*http.Request) (*http.Response, error)) (*http.Response, error)
}

var errCut = errors.New("the wire is cut")

func (w *wire) RoundTrip(request *http.Request) (*http.Response, error) {
	w.mu.Lock()
	closed, hook := w.closed, w.hook
	if request.Method != http.MethodGet && !closed {
		if w.writes == nil {
			w.writes = make(map[string]int)
		}
		w.writes[request.Method+" "+resource(request.URL.Path)]++
	}
	w.mu.Unlock()
	if closed {
		return nil, errCut
	}
	if hook != nil && request.Method != http.MethodGet {
		return hook(request, w.next.RoundTrip)
	}
	return w.next.RoundTrip(request)
}

// resource is the part of a path that says what is written.
func resource(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	for i, part := range parts {
		if part == "namespaces" && len(parts) > i+2 {
			name := parts[i+2]
			if len(parts) > i+4 {
				name += "/" + parts[i+4]
			}
			return name
		}
	}
	return path
}

func (w *wire) count() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := make(map[string]int)
	for key, n := range w.writes {
		if !strings.Contains(key, "events") {
			counts[key] = n
		}
	}
	return counts
}

// total is how many writes there were.
func (w *wire) total() int {
	n := 0
	for _, times := range w.count() {
		n += times
	}
	return n
}

func (w *wire) set(
	hook func(*http.Request, func(*http.Request) (*http.Response, error)) (*http.Response, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = hook
}
