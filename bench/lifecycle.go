package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"time"
)

// measureLifecycle measures sandboxes on a real engine, one at a time.
func (b *bench) measureLifecycle(ctx context.Context) error {
	rows := []struct {
		name    string
		measure func(context.Context, *service, *engine) error
	}{{rowPause, b.measurePause}, {rowFirstExpiry, b.measureFirstExpiry},
		{rowGetBusy, b.measureBusyReads}}
	return b.withService(ctx, "", func(s *service, engine *engine) error {
		if b.selected(rowCreate) || b.selected(rowAccept) || b.selected(rowDelete) {
			var r creation
			if err := b.measureCreate(ctx, s, engine, atOnce, &r); err != nil {
				return err
			}
			b.results[rowCreate], b.results[rowAccept], b.results[rowDelete] = r.create, r.accept,
				r.remove
		}
		for _, row := range rows {
			if !b.selected(row.name) {
				continue
			}
			if err := row.measure(ctx, s, engine); err != nil {
				return fmt.Errorf("%s: %w", row.name, err)
			}
		}
		return nil
	})
}

// measureConfinedCreate measures sandboxes that have an egress sidecar.
func (b *bench) measureConfinedCreate(ctx context.Context) error {
	return b.withService(ctx, fmt.Sprintf("\n[egress]\nimage = %q\n", egressImage),
		func(s *service, engine *engine) error {
			var r creation
			err := b.measureCreate(ctx, s, engine, atOnce, &r)
			b.results[rowCreateEgress] = r.create
			return err
		})
}

// oneSpare makes the service keep one network ahead.
const oneSpare = "\n[docker]\nspare_networks = 1\n"

// measureSpareCreate measures sandboxes that each find a network made ahead.
func (b *bench) measureSpareCreate(ctx context.Context) error {
	return b.withService(ctx, oneSpare, func(s *service, engine *engine) error {
		var r creation
		err := b.measureCreate(ctx, s, engine, s.spare, &r)
		b.results[rowCreateSpare], b.results[rowDeleteSpare] = r.create, r.remove
		return err
	})
}

// measureConfinedSpareCreate measures sandboxes that each find an egress sidecar made ahead.
func (b *bench) measureConfinedSpareCreate(ctx context.Context) error {
	return b.withService(ctx, oneSpare+fmt.Sprintf("\n[egress]\nimage = %q\n", egressImage),
		func(s *service, engine *engine) error {
			var r creation
			err := b.measureCreate(ctx, s, engine, s.spare, &r)
			b.results[rowEgressSpare] = r.create
			return err
		})
}

// spare returns when a network that was made ahead is free, and the next one is not being made.
func (s *service) spare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
	defer cancel()
	metrics := getter{client: s.client, url: s.url + "/metrics", header: http.Header{keyHeader: {key}}}
	for {
		text, err := metrics.get(ctx)
		if err != nil || bytes.Contains(text, []byte("\nsandbox_spare_networks 1\n")) {
			return err
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("no network was made ahead: %w", err)
		}
	}
}

// atOnce waits for nothing.
func atOnce(context.Context) error { return nil }

// withService starts an engine's client and a service with a piece of configuration of its own, and
// removes what they leave.
func (b *bench) withService(ctx context.Context, config string,
	do func(*service, *engine) error) (err error) {
	engine, err := openEngine(ctx)
	if err != nil {
		return err
	}
	s, err := b.startService(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		s.stop()
		err = errors.Join(err, engine.clean(ctx, label, "sandbox.internal/instance="+s.instance))
	}()
	return do(s, engine)
}

// creation is what the life of one sandbox after the other shows.
type creation struct{ create, accept, remove pair }

// measureCreate measures sandboxes from nothing to the first output, how soon the service answers
// that it will make them, which it does when the record is safe, and how long it takes until
// nothing is left of them. Ready is called before each side's turn.
func (b *bench) measureCreate(ctx context.Context, s *service, engine *engine,
	ready func(context.Context) error, r *creation) error {
	floor, err := b.startWorker(ctx)
	if err != nil {
		return err
	}
	defer floor.Stop()
	record := filepath.Join(s.dataDir, "floor")
	for i := range b.rounds(20, 3) + 1 {
		var round creation
		if err := ready(ctx); err != nil {
			return err
		}
		if err := s.lifeOfOne(ctx, &round); err != nil {
			if errors.Is(err, errLost) || ctx.Err() != nil {
				return err
			}
			b.progress("%s: round %d: %v", rowCreate, i, err)
			round.create.ours.fail()
			round.accept.ours.fail()
			round.remove.ours.fail()
		}
		if err := ready(ctx); err != nil {
			return err
		}
		if err := engine.lifeOfOne(ctx, floor.one("append", record), &round); err != nil {
			return fmt.Errorf("floor of %s: %w", rowCreate, err)
		}
		if i == 0 { // warm on both sides
			continue
		}
		r.create.join(round.create)
		r.accept.join(round.accept)
		r.remove.join(round.remove)
	}
	return nil
}

func (s *service) lifeOfOne(ctx context.Context, round *creation) error {
	began := time.Now()
	id, err := s.create(ctx)
	if err != nil {
		return err
	}
	accepted := elapsed(began)
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	created := elapsed(began)
	began = time.Now()
	if err := errors.Join(err, s.delete(ctx, id)); err != nil {
		return err
	}
	round.accept.ours.add(accepted)
	round.create.ours.add(created)
	round.remove.ours.add(elapsed(began))
	return nil
}

func (e *engine) lifeOfOne(ctx context.Context, record func(context.Context) (float64, error),
	round *creation) error {
	recorded, err := record(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	id, err := e.launch(ctx)
	if err != nil {
		return err
	}
	created := elapsed(began)
	began = time.Now()
	if err := e.remove(ctx, id); err != nil {
		return err
	}
	round.accept.floor.add(recorded)
	round.create.floor.add(created)
	round.remove.floor.add(elapsed(began))
	return nil
}

func (b *bench) measurePause(ctx context.Context, s *service, engine *engine) error {
	id, err := s.create(ctx)
	if err != nil {
		return err
	}
	daemon, err := s.daemon(ctx, id)
	if err == nil {
		err = daemon.firstOutput(ctx)
	}
	if err != nil {
		return err
	}
	container, err := engine.launch(ctx)
	if err != nil {
		return err
	}
	return b.inTurns(ctx, rowPause, b.rounds(30, 5), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			if err := s.act(ctx, id, "pause"); err != nil {
				return 0, err
			}
			if err := s.act(ctx, id, "resume"); err != nil {
				return 0, err
			}
			err := daemon.firstOutput(ctx)
			return elapsed(began), err
		},
		floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			err := engine.freeze(ctx, container)
			return elapsed(began), err
		},
	})
}

// measureReads measures answers from records: of the first of these sandboxes, and a list of all of
// them, which carry the metadata that it asks for. The floor sends the very bytes that the service
// sent.
func (b *bench) measureReads(ctx context.Context, s *service, ids []string) error {
	for _, row := range []struct {
		name, path string
		check      func([]byte) error
	}{
		{rowGet, "/v1/sandboxes/" + ids[0],
			func(answer []byte) error { return isSandbox(answer, ids[0]) }},
		{rowList, "/v1/sandboxes?state=Pending&pageSize=20&metadata=" +
			url.QueryEscape("made-by=bench"),
			func(answer []byte) error { return isList(answer, ids) }},
	} {
		if !b.selected(row.name) {
			continue
		}
		ours := getter{client: s.client, url: s.url + row.path,
			header: http.Header{keyHeader: {key}}}
		answer, err := ours.settled(ctx)
		if err == nil {
			err = row.check(answer)
		}
		if err == nil {
			err = b.measureRead(ctx, row.name, ours, answer)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// measureRead measures one answer, which is the same every time.
func (b *bench) measureRead(ctx context.Context, name string, ours getter, answer []byte) error {
	floor, err := b.startFloor(ctx)
	if err != nil {
		return err
	}
	defer floor.stop()
	if err := floor.prebuild(ctx, answer); err != nil {
		return err
	}
	theirs := getter{client: floor.client, url: floor.url + "/prebuilt"}
	var took, floorTook requests
	return b.inTurns(ctx, name, b.rounds(15, 3), sides{
		ours: func(ctx context.Context) (float64, error) {
			return ours.rate(ctx, answer, &took)
		},
		floor: func(ctx context.Context) (float64, error) {
			return theirs.rate(ctx, answer, &floorTook)
		},
		oursRequests: &took, floorRequests: &floorTook,
	})
}

// isSandbox expects the answer to be this sandbox.
func isSandbox(answer []byte, id string) error {
	var sandbox struct{ ID string }
	if err := json.Unmarshal(answer, &sandbox); err != nil || sandbox.ID != id {
		return fmt.Errorf("%w: instead of sandbox %s: %.500s", errLost, id, answer)
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
		return fmt.Errorf("%w: instead of a list of %d sandboxes: %.500s", errLost, len(ids), answer)
	}
	return nil
}

// getter is one client that asks for the same thing again and again.
type getter struct {
	client *http.Client
	url    string
	header http.Header
}

func (g getter) get(ctx context.Context) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, g.url, nil)
	if err != nil {
		return nil, err
	}
	request.Header = g.header.Clone()
	response, err := send(g.client, request, http.StatusOK)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// settled returns the answer once each sandbox in it says how far the engine has come with its
// image, which is what it goes on saying.
func (g getter) settled(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		answer, err := g.get(ctx)
		if err != nil ||
			bytes.Count(answer, []byte(`"pulling `)) == bytes.Count(answer,
				[]byte(`"state":"Pending"`)) {
			return answer, err
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("%w: the last answer: %.500s", err, answer)
		}
	}
}

// perRound is how many requests make one value of a rate.
const perRound = 500

// rate is the number of answers a second of one client, each of which is want.
func (g getter) rate(ctx context.Context, want []byte, each *requests) (float64, error) {
	began := time.Now()
	for range perRound {
		if err := each.time(func() error { return g.expect(ctx, want) }); err != nil {
			return 0, err
		}
	}
	return perRound / time.Since(began).Seconds(), nil
}

// expect asks once. Another answer than want is lost data.
func (g getter) expect(ctx context.Context, want []byte) error {
	answer, err := g.get(ctx)
	if err == nil && !bytes.Equal(answer, want) {
		err = fmt.Errorf("%w: instead of %.500s: %.500s", errLost, want, answer)
	}
	return err
}
