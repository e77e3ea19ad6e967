// Command floor does what the bench compares us with: the same work, done by the least that could
// do it, in a process of its own. It is built of the standard library alone, so that what it weighs
// is what a small net/http program weighs.
//
//	floor serve ADDRESS DIR   the handlers below; what is uploaded goes to DIR
//	floor forward ADDRESS URL a bare httputil.ReverseProxy
//	floor work                jobs from standard input, one JSON array of strings a line; see work.go
//
// The bench builds and starts it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"sandbox.internal/bench/job"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "floor: %v\n", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 3 && args[0] == "serve":
		return listen(ctx, args[1], handlers(args[2]))
	case len(args) == 3 && args[0] == "forward":
		return forward(ctx, args[1], args[2])
	case len(args) == 1 && args[0] == "work":
		return job.Serve(os.Stdin, os.Stdout, jobs())
	default:
		return fmt.Errorf("arguments %q: want serve ADDRESS DIR, forward ADDRESS URL or work", args)
	}
}

func listen(ctx context.Context, address string, handler http.Handler) error {
	server := &http.Server{Addr: address, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// forward keeps as many connections as the ingress does.
func forward(ctx context.Context, address, to string) error {
	target, err := url.Parse(to)
	if err != nil {
		return err
	}
	return listen(ctx, address, &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	})
}

// handlers do the same work for a client as ours, and nothing else: no key, no contract, no log.
func handlers(dir string) http.Handler {
	var prebuilt []byte
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("PUT /upload", func(w http.ResponseWriter, r *http.Request) {
		if err := save(r.Body, filepath.Join(dir, "uploaded")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /download", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, r.URL.Query().Get("path"))
	})
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {}\n\n")
		http.NewResponseController(w).Flush() // a client that is gone shows in the context
		<-r.Context().Done()
	})
	mux.HandleFunc("PUT /prebuilt", func(w http.ResponseWriter, r *http.Request) {
		var err error
		if prebuilt, err = io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("GET /prebuilt", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Write(prebuilt) // a client that is gone counts as a failure on its own side
	})
	return mux
}

// save writes a raw body and syncs it: what a file that survives a crash costs at least.
func save(body io.Reader, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, body)
	return errors.Join(err, file.Sync(), file.Close())
}
