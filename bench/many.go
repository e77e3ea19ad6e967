package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"
)

const (
	// stored is how many sandboxes the rows of reading and of expiry have.
	stored = 10_000
	// perPage is how many sandboxes one answer may list.
	perPage = 1000
	// tagged is how many of them carry the metadata that the list asks for.
	tagged = 20
	// patience is after how many seconds they expire: time enough to make and to read them all.
	patience = 90
	// clients is how many requests are under way at the same time where there are many.
	clients = 16
)

// measureStored measures reading among many records, and how late many sandboxes end. They need no
// containers for that: their image comes from a registry that never answers, so they are Pending,
// which ends by expiry like any other state.
func (b *bench) measureStored(ctx context.Context) error {
	registry := httptest.NewServer(http.HandlerFunc(endless))
	defer registry.Close()
	defer registry.CloseClientConnections() // the engine's, which wait for the rest of the image
	s, err := b.startService(ctx, "")
	if err != nil {
		return err
	}
	defer s.stop()

	image := strings.TrimPrefix(registry.URL, "http://") + "/no/such:image"
	count := stored
	if b.scale != scaleFull {
		count /= 10
	}
	expiries, listed := make(map[string]time.Time, count), make([]string, tagged)
	var mutex sync.Mutex
	b.progress("storing %d sandboxes", count)
	err = concurrently(ctx, count, func(ctx context.Context, i int) error {
		metadata := map[string]string{"number": fmt.Sprint(i)}
		if i < tagged {
			metadata["made-by"] = "bench"
		}
		var created struct {
			ID        string
			ExpiresAt time.Time
		}
		err := s.call(ctx, http.MethodPost, "/v1/sandboxes", http.StatusAccepted, map[string]any{
			"image": map[string]string{"uri": image}, "timeout": patience,
			"resourceLimits": map[string]string{"memory": "64Mi"},
			"entrypoint":     []string{"sleep", "600"}, "metadata": metadata,
		}, &created)
		mutex.Lock()
		defer mutex.Unlock()
		expiries[created.ID] = created.ExpiresAt
		if i < tagged {
			listed[i] = created.ID
		}
		return err
	})
	if err != nil {
		return err
	}
	// The engine is asked for the image of each, which takes the processor for a while after the
	// last has been accepted.
	for page := range (count + perPage - 1) / perPage {
		all := getter{client: s.client, header: http.Header{keyHeader: {key}},
			url: fmt.Sprintf("%s/v1/sandboxes?pageSize=%d&page=%d", s.url, perPage, page+1)}
		if _, err := all.settled(ctx); err != nil {
			return err
		}
	}
	if b.selected(rowGet) || b.selected(rowList) {
		if err := b.measureReads(ctx, s, listed); err != nil {
			return err
		}
	}
	if b.selected(rowExpiry) {
		return b.measureExpiry(ctx, s, expiries)
	}
	return nil
}

// endless is a registry that has every image, and never comes to the end of sending one.
func endless(w http.ResponseWriter, r *http.Request) {
	digest := "sha256:" + strings.Repeat("0", 64)
	switch {
	case strings.Contains(r.URL.Path, "/manifests/"):
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
		fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json",
			"config":{"mediaType":"application/vnd.docker.container.image.v1+json","size":1000,"digest":%q},
			"layers":[{"mediaType":"application/vnd.docker.image.rootfs.diff.tar.gzip","size":1000,"digest":%q}]}`, digest, digest)
	case strings.Contains(r.URL.Path, "/blobs/"):
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush() // if it fails, the engine has gone
		<-r.Context().Done()
	}
}

// concurrently calls do for 0 to count-1, a few at the same time, and returns the first error.
func concurrently(ctx context.Context, count int, do func(context.Context, int) error) error {
	return all(ctx, count, clients, do)
}

func all(ctx context.Context, count, atOnce int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	next := make(chan int)
	for range min(atOnce, count) {
		group.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := 0; i < count && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	group.Wait()
	return context.Cause(ctx)
}
