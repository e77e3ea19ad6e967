package sandboxes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

const (
	// storedSandboxes is how many sandboxes the rows of reading and of expiry have.
	storedSandboxes = 10_000
	// perPage is how many sandboxes one answer may list.
	perPage = 1000
	// tagged is how many of them carry the metadata that the list asks for.
	tagged = 20
	// patience is after how many seconds they expire: time enough to make and to read them all.
	patience = 90
)

// Stored has reading among many records, and how late many sandboxes end. They need no containers
// for that: their image comes from a registry that never answers, so they are Pending, which ends
// by expiry like any other state.
func Stored() measure.Group {
	return measure.Sharing(withStored,
		measure.Single(measure.Row{Name: "get", What: "GET of a sandbox",
			Floor: "a handler that writes the same bytes, prebuilt",
			Unit:  measure.PerSecond, Target: measure.Ratio(0.6), Gate: true},
			func(ctx context.Context, run *measure.Run, with records) (measure.Pair, error) {
				id := with.listed[0]
				return measureReads(ctx, run, with.Reader("/v1/sandboxes/"+id), func(answer []byte) error { return isSandbox(answer, id) })
			}),
		measure.Single(measure.Row{Name: "list", What: "list of 20 among 10 000, by a state and a metadata filter",
			Floor: "a handler that writes the same bytes, prebuilt",
			Unit:  measure.PerSecond, Target: measure.Ratio(0.3), Gate: true},
			func(ctx context.Context, run *measure.Run, with records) (measure.Pair, error) {
				from := with.Reader("/v1/sandboxes?state=Pending&pageSize=20&metadata=" + url.QueryEscape("made-by=bench"))
				return measureReads(ctx, run, from, func(answer []byte) error { return isList(answer, with.listed) })
			}),
		measure.Single(measure.Row{Name: "expiry", What: "how late the end of each of 10 000 sandboxes is reported",
			Floor: "how late as many timers of the standard library are",
			Unit:  measure.Milliseconds, Target: measure.Tail(500)},
			measureExpiry))
}

// records is a service that has many sandboxes without containers.
type records struct {
	*rig.Service
	listed   []string             // those of a list that is asked for
	expiries map[string]time.Time // when each expires
}

func withStored(ctx context.Context, run *measure.Run, do func(records) error) error {
	registry := httptest.NewServer(http.HandlerFunc(endless))
	defer registry.Close()
	defer registry.CloseClientConnections() // the engine's, which wait for the rest of the image
	s, err := rig.StartService(ctx, run, "")
	if err != nil {
		return err
	}
	defer s.Stop()

	image := strings.TrimPrefix(registry.URL, "http://") + "/no/such:image"
	count := storedSandboxes
	if run.Scale != measure.ScaleFull {
		count /= 10
	}
	expiries, listed := make(map[string]time.Time, count), make([]string, tagged)
	var mutex sync.Mutex
	run.Progress("storing %d sandboxes", count)
	err = measure.Concurrently(ctx, count, func(ctx context.Context, i int) error {
		metadata := map[string]string{"number": fmt.Sprint(i)}
		if i < tagged {
			metadata["made-by"] = "bench"
		}
		var created struct {
			ID        string
			ExpiresAt time.Time
		}
		err := s.Call(ctx, http.MethodPost, "/v1/sandboxes", http.StatusAccepted, map[string]any{
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
		if _, err := settled(ctx, s.Reader(fmt.Sprintf("/v1/sandboxes?pageSize=%d&page=%d", perPage, page+1))); err != nil {
			return err
		}
	}
	return do(records{s, listed, expiries})
}

// measureReads measures one answer from records, which is the same every time and passes the check.
// The floor sends the very bytes that the service sent.
func measureReads(ctx context.Context, run *measure.Run, from rig.Getter, check func([]byte) error) (measure.Pair, error) {
	answer, err := settled(ctx, from)
	if err == nil {
		err = check(answer)
	}
	if err != nil {
		return measure.Pair{}, err
	}
	floor, err := rig.StartFloor(ctx, run)
	if err != nil {
		return measure.Pair{}, err
	}
	defer floor.Stop()
	if err := floor.Prebuild(ctx, answer); err != nil {
		return measure.Pair{}, err
	}
	theirs := rig.Getter{Client: floor.Client, URL: floor.URL + "/prebuilt"}
	return run.InTurns(ctx, run.Rounds(15, 3), measure.EachSide(from, theirs, func(g rig.Getter, each *measure.Requests) measure.Figure {
		return func(ctx context.Context) (float64, error) { return g.Rate(ctx, answer, each) }
	}))
}

// isSandbox expects the answer to be this sandbox.
func isSandbox(answer []byte, id string) error {
	var sandbox struct{ ID string }
	if err := json.Unmarshal(answer, &sandbox); err != nil || sandbox.ID != id {
		return fmt.Errorf("%w: instead of sandbox %s: %.500s", measure.ErrLost, id, answer)
	}
	return nil
}

// isList expects the answer to list these sandboxes and no other, in any order.
func isList(answer []byte, ids []string) error {
	var page struct{ Items []struct{ ID string } }
	err := json.Unmarshal(answer, &page)
	listed := make([]string, len(page.Items))
	for i, item := range page.Items {
		listed[i] = item.ID
	}
	slices.Sort(listed)
	if err != nil || !slices.Equal(listed, slices.Sorted(slices.Values(ids))) {
		return fmt.Errorf("%w: instead of a list of %d sandboxes: %.500s", measure.ErrLost, len(ids), answer)
	}
	return nil
}

// settled returns the answer once each sandbox in it says how far the engine has come with its
// image, which is what it goes on saying.
func settled(ctx context.Context, from rig.Getter) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		answer, err := from.Get(ctx)
		if err != nil ||
			bytes.Count(answer, []byte(`"pulling `)) == bytes.Count(answer,
				[]byte(`"state":"Pending"`)) {
			return answer, err
		}
		if err := measure.Pause(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("%w: the last answer: %.500s", err, answer)
		}
	}
}

// measureExpiry follows the events until every sandbox has ended, and takes how late a client reads
// of each: an event is sent once it is durable and the container, if there was one, is gone. The
// floor is how late as many timers of the standard library are that are due at the same moments, in
// a process of their own, so that what the machine does meanwhile hits both.
func measureExpiry(ctx context.Context, run *measure.Run, with records) (measure.Pair, error) {
	ctx, cancel := context.WithTimeout(ctx, expiryWait)
	defer cancel()
	events, err := with.Follow(ctx)
	if err != nil {
		return measure.Pair{}, err
	}
	defer events.Close()
	run.Progress("waiting for %d sandboxes to expire", len(with.expiries))
	worker, err := rig.StartWorker(ctx, run)
	if err != nil {
		return measure.Pair{}, err
	}
	defer worker.Stop()
	timers := []string{"timers"}
	for _, due := range with.expiries {
		timers = append(timers, due.Format(time.RFC3339Nano))
	}
	var result measure.Pair
	timed := make(chan error, 1)
	go func() {
		lateness, err := worker.Do(timers...)
		for _, late := range lateness {
			result.Floor.Add(late)
		}
		timed <- err
	}()
	err = events.Ended(with.expiries, func(late float64) error {
		result.Ours.Add(late)
		return nil
	})
	if err != nil {
		return measure.Pair{}, err
	}
	if err := <-timed; err != nil {
		return measure.Pair{}, fmt.Errorf("floor: %w", err)
	}
	return measure.Pair{Ours: result.Ours.InOne(), Floor: result.Floor.InOne()}, nil
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
