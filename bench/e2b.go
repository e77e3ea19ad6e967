package main

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
)

// e2bListed is how many sandboxes the list of the row has.
const e2bListed = 1000

// e2bService is a service that answers clients of E2B, as they send requests.
type e2bService struct{ *service }

// onE2B starts a service with the local engine for clients of E2B. Their template is what the bench
// asks the service's own API for. More is a piece of configuration.
func onE2B(more string) func(context.Context, *bench, func(e2bService) error) error {
	p := plan{server: `compatibility = ["e2b"]`, more: more + fmt.Sprintf(
		"\n[[e2b.templates]]\nname = \"base\"\nimage = %q\nmemory = \"%sMi\"\nentrypoint = [\"sleep\", \"600\"]\n", baseImage, sandboxMemory)}
	return func(ctx context.Context, run *bench, do func(e2bService) error) error {
		return onLocal("crun", p)(ctx, run, func(with beside) error { return do(e2bService{with.service}) })
	}
}

// e2b has the service through E2B's API, on the local engine, beside the service's own.
func e2b() []group {
	return []group{
		sharing(onE2B(""),
			one(row{name: "e2b-create", what: "cold create through E2B's API, on the local engine: POST to the first output of a command",
				floor: "the same through the service's own API",
				unit:  milliseconds, target: ratio(1.2)},
				measureE2BCreate)),
		sharing(onE2B(""),
			one(row{name: "e2b-list-1000", what: "list of 1000 running sandboxes through E2B's API, in pages of 100, each seen once",
				floor: "a list of as many through the service's own API, in one page",
				unit:  milliseconds, target: ours(100)},
				measureE2BList)),
	}
}

// measureE2BCreate measures a sandbox from the request that creates it to the first output of a
// command, through E2B's API and, as the floor, through the service's own.
func measureE2BCreate(ctx context.Context, run *bench, s e2bService) (pair, error) {
	return run.inTurns(ctx, run.rounds(200, 20), sides{
		ours: func(ctx context.Context) (float64, error) {
			began := time.Now()
			made, err := s.create(ctx)
			if err != nil {
				return 0, err
			}
			err = s.firstOutput(ctx, made)
			took := elapsed(began)
			return took, errors.Join(err, s.delete(ctx, made.id()))
		},
		floor: s.timeToOutput,
	})
}

// measureE2BList measures a list of many running sandboxes in pages of 100, as a client of E2B asks
// for them. Every sandbox is in it once.
func measureE2BList(ctx context.Context, run *bench, s e2bService) (pair, error) {
	count := run.rounds(e2bListed, 50)
	if _, err := s.runMany(ctx, run, count); err != nil {
		return pair{}, err
	}
	return run.inTurns(ctx, run.rounds(50, 10), sides{
		ours: func(ctx context.Context) (float64, error) { return s.list(ctx, count) },
		floor: func(ctx context.Context) (float64, error) {
			began := time.Now()
			var page struct{ Items []json.RawMessage }
			err := s.call(ctx, http.MethodGet, "/v1/sandboxes?pageSize=1000", http.StatusOK, nil, &page)
			if err == nil && len(page.Items) != count {
				err = fmt.Errorf("%w: a list of %d of %d sandboxes", errLost, len(page.Items), count)
			}
			return elapsed(began), err
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
	request, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = header
	return send(s.client, request, want)
}

// create returns a sandbox that can be used.
func (s e2bService) create(ctx context.Context) (made e2bSandbox, err error) {
	response, err := s.send(ctx, http.MethodPost, "/v2/sandboxes", http.Header{"X-Api-Key": {key}, "Content-Type": {"application/json"}},
		[]byte(`{"templateID":"base","timeout":600,"secure":true,"metadata":{"made-by":"bench"}}`), http.StatusCreated)
	if err != nil {
		return made, err
	}
	defer response.Body.Close()
	return made, json.NewDecoder(response.Body).Decode(&made)
}

// firstOutput returns when a command in the sandbox has printed, and has ended.
func (s e2bService) firstOutput(ctx context.Context, sandbox e2bSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, usableTimeout)
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
			return fmt.Errorf("%w: the command has ended without output: %.200s", errLost, message)
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
	if size > longestLine {
		return 0, nil, fmt.Errorf("%w: a message of %d bytes", errLost, size)
	}
	message = make([]byte, size)
	_, err = io.ReadFull(in, message)
	return header[0], message, err
}

// list reads every page of the list, and returns how long that took in milliseconds.
func (s e2bService) list(ctx context.Context, count int) (float64, error) {
	began, seen, path := time.Now(), make(map[string]bool), "/v2/sandboxes?limit=100"
	for next := ""; ; {
		response, err := s.send(ctx, http.MethodGet, path+next, http.Header{"X-Api-Key": {key}}, nil, http.StatusOK)
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
				return 0, fmt.Errorf("%w: sandbox %s is listed twice", errLost, sandbox.SandboxID)
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
		return 0, fmt.Errorf("%w: a list of %d of %d sandboxes", errLost, len(seen), count)
	}
	return elapsed(began), nil
}
