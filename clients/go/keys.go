package sandbox

import (
	"context"
	"iter"
	"net/http"
	"time"

	"sandbox.internal/clients/go/lifecycle"
)

// The roles of a key.
const (
	RoleAdmin  = lifecycle.KeyRoleAdmin  // everything
	RoleUser   = lifecycle.KeyRoleUser   // everything with its own sandboxes
	RoleViewer = lifecycle.KeyRoleViewer // read
)

type (
	// Key is an API key of the service, without its secret.
	Key = lifecycle.Key
	// KeyRole is what a key may do.
	KeyRole = lifecycle.KeyRole
	// KeyLimits is what a key may ask for.
	KeyLimits = lifecycle.KeyLimits
	// KeyRateLimit is how often a key may send requests.
	KeyRateLimit = lifecycle.KeyRateLimit
	// IssuedKey is a key with its secret.
	IssuedKey = lifecycle.IssuedKey
	// CreateKeyRequest is a key to make.
	CreateKeyRequest = lifecycle.CreateKeyRequest
)

// Keys manages the API keys of the service. The methods need a key with the role admin. Those of
// the service's configuration can be read only, and a service on a cluster has no others: it
// responds to changes with 501.
type Keys struct{ client *Client }

// List yields the keys by name. Pages are read as they are needed.
func (k Keys) List(ctx context.Context) iter.Seq2[Key, error] {
	return func(yield func(Key, error) bool) {
		size := pageSize
		for page := 1; ; page++ {
			var list lifecycle.KeyList
			err := k.client.call(ctx, repeatable, &list, func(ctx context.Context) (*http.Response, error) {
				return k.client.service.ListKeys(ctx, &lifecycle.ListKeysParams{Page: &page, PageSize: &size})
			})
			if err != nil {
				yield(Key{}, err)
				return
			}
			for _, key := range list.Items {
				if !yield(key, nil) {
					return
				}
			}
			if !list.Pagination.HasNextPage {
				return
			}
		}
	}
}

// Get returns a key.
func (k Keys) Get(ctx context.Context, name string) (Key, error) {
	var key Key
	err := k.client.call(ctx, repeatable, &key, func(ctx context.Context) (*http.Response, error) {
		return k.client.service.GetKey(ctx, name)
	})
	return key, err
}

// Create makes a key and returns it with its secret, which the service cannot show again.
func (k Keys) Create(ctx context.Context, request CreateKeyRequest) (IssuedKey, error) {
	var issued IssuedKey
	err := k.client.call(ctx, once, &issued, func(ctx context.Context) (*http.Response, error) {
		return k.client.service.CreateKey(ctx, request)
	})
	return issued, err
}

// RotateOptions say how a secret is replaced. Nil means that the one before is refused at once.
type RotateOptions struct {
	// Grace is for how long the secret before stays valid, in whole seconds.
	Grace time.Duration
	// ExpiresAt is when the key ceases to be valid; the zero time leaves what it was.
	ExpiresAt time.Time
}

// Rotate gives a key a new secret, and returns it.
func (k Keys) Rotate(ctx context.Context, name string, o *RotateOptions) (IssuedKey, error) {
	options := deref(o)
	var issued IssuedKey
	err := k.client.call(ctx, once, &issued, func(ctx context.Context) (*http.Response, error) {
		return k.client.service.RotateKey(ctx, name, lifecycle.RotateKeyRequest{
			GraceSeconds: optional(int(options.Grace / time.Second)), ExpiresAt: optional(options.ExpiresAt),
		})
	})
	return issued, err
}

// Delete removes a key: from then on it is refused.
func (k Keys) Delete(ctx context.Context, name string) error {
	return k.client.call(ctx, once, nil, func(ctx context.Context) (*http.Response, error) {
		return k.client.service.DeleteKey(ctx, name)
	})
}
