// Package e2b has the rows of the service through E2B's API and with its clients.
package e2b

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"sandbox.internal/bench/measure"
	"sandbox.internal/bench/rig"
)

// e2bListed is how many sandboxes the list of the row has.
const e2bListed = 1000

// e2bService is a service that answers clients of E2B, as they send requests.
type e2bService struct{ *rig.Service }

// onE2B starts a service with the local engine for clients of E2B. Their template is what the bench
// asks the service's own API for. More is a piece of configuration.
func onE2B(more string) func(context.Context, *measure.Run, func(e2bService) error) error {
	p := rig.Plan{Server: `compatibility = ["e2b"]`, More: more + fmt.Sprintf(
		"\n[[e2b.templates]]\nname = \"base\"\nimage = %q\nmemory = \"%sMi\"\nentrypoint = [\"sleep\", \"600\"]\n", rig.BaseImage, rig.SandboxMemory)}
	return func(ctx context.Context, run *measure.Run, do func(e2bService) error) error {
		return rig.OnLocal("crun", p)(ctx, run, func(with rig.Beside) error { return do(e2bService{with.Service}) })
	}
}

// Rows has the service through E2B's API, on the local engine, beside the service's own.
func Rows() []measure.Group {
	return []measure.Group{
		measure.Sharing(onE2B(""),
			measure.Single(measure.Row{Name: "e2b-create", What: "cold create through E2B's API, on the local engine: POST to the first output of a command",
				Floor: "the same through the service's own API",
				Unit:  measure.Milliseconds, Target: measure.Ratio(1.2)},
				measureE2BCreate)),
		measure.Sharing(onE2B(""),
			measure.Single(measure.Row{Name: "e2b-list-1000", What: "list of 1000 running sandboxes through E2B's API, in pages of 100, each seen once",
				Floor: "a list of as many through the service's own API, in one page",
				Unit:  measure.Milliseconds, Target: measure.Ours(100)},
				measureE2BList)),
	}
}

// measureE2BCreate measures a sandbox from the request that creates it to the first output of a
// command, through E2B's API and, as the floor, through the service's own.
func measureE2BCreate(ctx context.Context, run *measure.Run, s e2bService) (measure.Pair, error) {
	return run.InTurns(ctx, run.Rounds(200, 20), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			made, err := s.create(ctx)
			if err != nil {
				return 0, err
			}
			err = s.firstOutput(ctx, made)
			took := measure.Elapsed(began)
			return took, errors.Join(err, s.Delete(ctx, made.id()))
		},
		Floor: s.TimeToOutput,
	})
}

// measureE2BList measures a list of many running sandboxes in pages of 100, as a client of E2B asks
// for them. Every sandbox is in it once.
func measureE2BList(ctx context.Context, run *measure.Run, s e2bService) (measure.Pair, error) {
	count := run.Rounds(e2bListed, 50)
	if _, err := s.RunMany(ctx, run, count); err != nil {
		return measure.Pair{}, err
	}
	return run.InTurns(ctx, run.Rounds(50, 10), measure.Sides{
		Ours: func(ctx context.Context) (float64, error) { return s.list(ctx, count) },
		Floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			var page struct{ Items []json.RawMessage }
			err := s.Call(ctx, http.MethodGet, "/v1/sandboxes?pageSize=1000", http.StatusOK, nil, &page)
			if err == nil && len(page.Items) != count {
				err = fmt.Errorf("%w: a list of %d of %d sandboxes", measure.ErrLost, len(page.Items), count)
			}
			return measure.Elapsed(began), err
		},
	})
}

// e2bSandbox is what a client of E2B needs to have of a new sandbox.
type e2bSandbox struct {
	SandboxID       string `json:"sandboxID"`
	EnvdAccessToken string `json:"envdAccessToken"`
}

// id is the sandbox's id in the service's own API.
func (s e2bSandbox) id() string {
	id := s.SandboxID
	if len(id) != 32 {
		return id
	}
	return strings.Join([]string{id[:8], id[8:12], id[12:16], id[16:20], id[20:]}, "-")
}

// send sends a request of a client of E2B and expects the status.
func (s e2bService) send(ctx context.Context, method, path string, header http.Header, body []byte, want int) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = header
	return rig.Send(s.Client, request, want)
}

// create returns a sandbox that can be used.
func (s e2bService) create(ctx context.Context) (made e2bSandbox, err error) {
	response, err := s.send(ctx, http.MethodPost, "/v2/sandboxes", http.Header{"X-Api-Key": {rig.Key}, "Content-Type": {"application/json"}},
		[]byte(`{"templateID":"base","timeout":600,"secure":true,"metadata":{"made-by":"bench"}}`), http.StatusCreated)
	if err != nil {
		return made, err
	}
	defer response.Body.Close()
	return made, json.NewDecoder(response.Body).Decode(&made)
}

// firstOutput returns when a command in the sandbox has printed, and has ended.
func (s e2bService) firstOutput(ctx context.Context, sandbox e2bSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, rig.UsableTimeout)
	defer cancel()
	const start = `{"process":{"cmd":"/bin/bash","args":["-l","-c","echo x"],"envs":{}},"stdin":false}`
	response, err := s.send(ctx, http.MethodPost, "/process.Process/Start", http.Header{
		"Content-Type": {"application/connect+json"}, "Connect-Protocol-Version": {"1"},
		"X-Access-Token": {sandbox.EnvdAccessToken}, "E2b-Sandbox-Id": {sandbox.SandboxID}, "E2b-Sandbox-Port": {"49983"},
	}, e2bEnvelope([]byte(start)), http.StatusOK)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	printed := false
	for {
		flags, message, err := readE2BEnvelope(response.Body)
		if err != nil {
			return err
		}
		printed = printed || bytes.Contains(message, []byte(`"stdout"`))
		const last = 2
		if flags&last == 0 {
			continue
		}
		if !printed {
			return fmt.Errorf("%w: the command has ended without output: %.200s", measure.ErrLost, message)
		}
		return nil
	}
}

// e2bEnvelope is a message of the Connect protocol's streams.
func e2bEnvelope(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...) //nolint:gosec // some bytes
}

func readE2BEnvelope(in io.Reader) (flags byte, message []byte, err error) {
	var header [5]byte
	if _, err := io.ReadFull(in, header[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(header[1:])
	if size > rig.LongestLine {
		return 0, nil, fmt.Errorf("%w: a message of %d bytes", measure.ErrLost, size)
	}
	message = make([]byte, size)
	_, err = io.ReadFull(in, message)
	return header[0], message, err
}

// list reads every page of the list, and returns how long that took in milliseconds.
func (s e2bService) list(ctx context.Context, count int) (float64, error) {
	began, seen, path := time.Now(), make(map[string]bool), "/v2/sandboxes?limit=100"
	for next := ""; ; {
		response, err := s.send(ctx, http.MethodGet, path+next, http.Header{"X-Api-Key": {rig.Key}}, nil, http.StatusOK)
		if err != nil {
			return 0, err
		}
		var page []e2bSandbox
		err = errors.Join(json.NewDecoder(response.Body).Decode(&page), response.Body.Close())
		if err != nil {
			return 0, err
		}
		for _, sandbox := range page {
			if seen[sandbox.SandboxID] {
				return 0, fmt.Errorf("%w: sandbox %s is listed twice", measure.ErrLost, sandbox.SandboxID)
			}
			seen[sandbox.SandboxID] = true
		}
		token := response.Header.Get("X-Next-Token")
		if token == "" {
			break
		}
		next = "&nextToken=" + token
	}
	if len(seen) != count {
		return 0, fmt.Errorf("%w: a list of %d of %d sandboxes", measure.ErrLost, len(seen), count)
	}
	return measure.Elapsed(began), nil
}
