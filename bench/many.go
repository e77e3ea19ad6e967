package main

import (
	"context"
	"errors"
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
	// tagged is how many of them carry the metadata that the list asks for.
	tagged = 20
	// patience is after how many seconds they expire: time enough to make and to read them all.
	patience = 90
	// clients is how many requests are under way at the same time where there are many.
	clients = 16
	// crowd is how many sandboxes are asked for at once.
	crowd = 200
)

// measureStored measures reading among many records, and how late many sandboxes end. They need no containers for that: their image
// comes from a registry that never answers, so they are Pending, which ends by expiry like any other state.
func (b *bench) measureStored(ctx context.Context) error {
	registry := httptest.NewServer(http.HandlerFunc(endless))
	defer registry.Close()
	defer registry.CloseClientConnections() // the engine's, which wait for the rest of the image
	s, err := b.startService(ctx)
	if err != nil {
		return err
	}
	defer s.stop()

	image := strings.TrimPrefix(registry.URL, "http://") + "/no/such:image"
	count := b.rounds(stored, stored/10)
	ids, expiries := make([]string, count), make([]time.Time, count)
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
			"image": map[string]string{"uri": image}, "timeout": patience, "resourceLimits": map[string]string{"memory": "64Mi"},
			"entrypoint": []string{"sleep", "600"}, "metadata": metadata,
		}, &created)
		ids[i], expiries[i] = created.ID, created.ExpiresAt
		return err
	})
	if err != nil {
		return err
	}
	if b.wants(rowGet) || b.wants(rowList) {
		if err := b.measureReads(ctx, s, ids[0]); err != nil {
			return err
		}
	}
	if b.wants(rowExpiry) {
		return b.measureExpiry(ctx, s, ids, expiries)
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

// measureCrowd asks for many sandboxes at once. Each must come to Running or to a Failed that says why; none may be lost or left.
func (b *bench) measureCrowd(ctx context.Context) (err error) {
	engine, err := openEngine(ctx)
	if err != nil {
		return err
	}
	s, err := b.startService(ctx)
	if err != nil {
		return err
	}
	defer func() {
		s.stop()
		err = errors.Join(err, engine.clean(ctx, label, "sandbox.internal/instance="+s.instance))
	}()
	count := b.rounds(crowd, 20)
	var rate, memory pair

	// As many as on our side: the more containers an engine has, the longer it takes for the next.
	began := time.Now()
	if err := concurrently(ctx, count, func(ctx context.Context, _ int) error {
		_, err := engine.launch(ctx)
		return err
	}); err != nil {
		return fmt.Errorf("floor of %s: %w", rowCrowd, err)
	}
	rate.floor.add(float64(count) / time.Since(began).Seconds())
	if err := engine.clean(ctx, label); err != nil {
		return err
	}

	ids := make([]string, count)
	began = time.Now()
	err = all(ctx, count, count, func(ctx context.Context, i int) (err error) {
		ids[i], err = s.create(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("%w: an answer to a creation: %w", errLost, err)
	}
	running, reasons, err := s.settled(ctx, ids)
	if err != nil {
		return err
	}
	rate.ours = sample{values: []float64{float64(count) / time.Since(began).Seconds()}, attempts: 1}
	for i := range count {
		if i >= running {
			rate.ours.fail()
		} else if i > 0 {
			rate.ours.add(rate.ours.values[0])
		}
	}
	for _, reason := range reasons {
		b.progress("%s: Failed: %s", rowCrowd, reason)
	}
	resident, err := s.resident()
	if err != nil {
		return err
	}
	memory.ours.add(resident)
	floor, err := b.startFloor(ctx)
	if err != nil {
		return err
	}
	defer floor.stop()
	if resident, err = atRest(ctx, floor); err != nil {
		return err
	}
	memory.floor.add(resident)
	b.results[rowCrowd], b.results[rowService] = rate, memory
	return concurrently(ctx, count, func(ctx context.Context, i int) error { return s.ended(ctx, ids[i]) })
}

// settled waits until no sandbox is Pending, and returns how many run and why the others do not. What it asks meanwhile costs the
// service little, because the sandboxes are made on the same processors.
func (s *service) settled(ctx context.Context, ids []string) (running int, reasons []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		var pending struct{ Pagination struct{ TotalItems int } }
		if err := s.call(ctx, http.MethodGet, "/v1/sandboxes?state=Pending&pageSize=1", http.StatusOK, nil, &pending); err != nil {
			return 0, nil, err
		}
		if pending.Pagination.TotalItems == 0 {
			break
		}
		select {
		case <-ctx.Done():
			return 0, nil, fmt.Errorf("%w: %d sandboxes neither run nor failed", errLost, pending.Pagination.TotalItems)
		case <-time.After(100 * time.Millisecond):
		}
	}
	states, err := s.states(ctx)
	if err != nil {
		return 0, nil, err
	}
	for _, id := range ids {
		switch state, known := states[id]; {
		case !known:
			return 0, nil, fmt.Errorf("%w: sandbox %s was accepted and is not listed", errLost, id)
		case state.State == "Running":
			running++
		case state.State == "Failed" && state.Message != "":
			reasons = append(reasons, state.Reason+": "+state.Message)
		default:
			return 0, nil, fmt.Errorf("%w: sandbox %s is %s (%s)", errLost, id, state.State, state.Message)
		}
	}
	return running, reasons, nil
}

type status struct{ State, Reason, Message string }

// states returns the status of every sandbox.
func (s *service) states(ctx context.Context) (map[string]status, error) {
	var list struct {
		Items []struct {
			ID     string
			Status status
		}
	}
	if err := s.call(ctx, http.MethodGet, "/v1/sandboxes?pageSize=1000", http.StatusOK, nil, &list); err != nil {
		return nil, err
	}
	states := make(map[string]status, len(list.Items))
	for _, sandbox := range list.Items {
		states[sandbox.ID] = sandbox.Status
	}
	return states, nil
}

// ended deletes a sandbox, which may have ended by itself, and returns when it has ended.
func (s *service) ended(ctx context.Context, id string) error {
	var sandbox struct{ Status status }
	if err := s.call(ctx, http.MethodGet, "/v1/sandboxes/"+id, http.StatusOK, nil, &sandbox); err != nil {
		return err
	}
	if sandbox.Status.State == "Failed" {
		return nil
	}
	return s.gone(ctx, id)
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
