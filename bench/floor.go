package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// startFloor starts the floor server: this program again, doing as little as can be done, in a process of its own as
// the services are.
func (b *bench) startFloor(ctx context.Context) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := b.folder("floor")
	if err != nil {
		return nil, err
	}
	host, port, err := freeAddress()
	if err != nil {
		return nil, err
	}
	address := joined(host, port)
	return start(ctx, dir, address, "/ping", exec.Command(self, "floor", address, dir))
}

// serveFloor is the floor server. Its handlers do the same work for a client as ours, and nothing else: no key, no
// contract, no log.
func serveFloor(ctx context.Context, address, dir string) error {
	var prebuilt []byte
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) {
		if err := saveUpload(r, dir); err != nil {
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
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// saveUpload writes the form's file part to a temporary file, syncs it and renames it into place.
func saveUpload(r *http.Request, dir string) error {
	form, err := r.MultipartReader()
	if err != nil {
		return err
	}
	for {
		part, err := form.NextPart()
		if err != nil {
			return err
		}
		if part.FormName() != "file" {
			continue
		}
		file, err := os.CreateTemp(dir, "upload-*")
		if err != nil {
			return err
		}
		defer file.Close() // synced below: closing has nothing left to report
		if _, err := io.Copy(file, part); err != nil {
			return err
		}
		if err := file.Sync(); err != nil {
			return err
		}
		return os.Rename(file.Name(), filepath.Join(dir, "uploaded"))
	}
}

// prebuild gives the floor server the bytes that it is to answer with.
func (p *process) prebuild(ctx context.Context, answer []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, p.url+"/prebuilt", bytes.NewReader(answer))
	if err != nil {
		return err
	}
	response, err := send(p.client, request, http.StatusOK)
	if err != nil {
		return err
	}
	return drain(response)
}
