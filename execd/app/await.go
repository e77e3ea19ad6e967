package app

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"sandbox.internal/execd/api"
	"sandbox.internal/execd/config"
	"sandbox.internal/internal/claims"
	"sandbox.internal/internal/supervisor"
	"sandbox.internal/internal/tasks"
	"sandbox.internal/openapi/serve/listen"
)

// answerGrace is how long the answer to a claim may take to be sent; who has made the claim learns
// of it otherwise too.
const answerGrace = time.Second

// Claimable is who may claim a waiting daemon, as its variables say it.
type Claimable struct {
	// Key is the public key of the controller, as tasks.FormatKey writes it.
	Key string
	// Pod is the UID of the pod.
	Pod string
}

// Await listens, waits for a claim and returns it, with the token among its variables. It returns
// nil when ctx ends before, and an error when the address cannot be listened on, or the variables
// do not say who may claim the daemon.
func Await(ctx context.Context, settings config.Settings, by Claimable, logger zerolog.Logger) (*supervisor.Claim, error) {
	key, err := tasks.ParseKey(by.Key)
	if err != nil {
		return nil, fmt.Errorf("environment variable %s: %w", claims.KeyVariable, err)
	}
	if by.Pod == "" {
		return nil, fmt.Errorf("environment variable %s: must be the UID of the pod", claims.PodVariable)
	}
	inherited, err := supervisor.Listener(supervisor.PrefixExecd)
	if err != nil {
		return nil, err
	}
	listener, err := listen.Listener(inherited, "tcp", settings.Addr())
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	taken := make(chan *supervisor.Claim, 1)
	server, err := api.NewWaiting(api.WaitingOptions{
		Key: key, Pod: by.Pod, Logger: logger,
		Take: func(claim claims.Claim, token string) {
			sandbox := &supervisor.Claim{Entrypoint: claim.Entrypoint}
			for _, name := range slices.Sorted(maps.Keys(claim.Env)) {
				if name != tokenVariable {
					sandbox.Env = append(sandbox.Env, name+"="+claim.Env[name])
				}
			}
			sandbox.Env = append(sandbox.Env, tokenVariable+"="+token)
			taken <- sandbox
			stop() // the answer goes first
		},
	})
	if err != nil {
		listener.Close()
		return nil, err
	}
	err = listen.Serve(ctx, listener, http.Handler(server), listen.Options{
		Logger: logger, Grace: answerGrace, MaxUnauthenticated: listen.MaxUnauthenticated(),
	})
	select {
	case claim := <-taken:
		return claim, nil // it was promised
	default:
		return nil, err
	}
}

// tokenVariable is the variable of the access token.
const tokenVariable = "EXECD_ACCESS_TOKEN"
