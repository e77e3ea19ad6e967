package batch

import (
	"context"
	"net/http"
	"sync"
)

// background is what asks execds outside of the controller's workers, as a part of a manager.
type background struct {
	client *http.Client

	ctx    context.Context //nolint:containedctx // ends all that goes on
	cancel context.CancelFunc
	wait   sync.WaitGroup
	mu     sync.Mutex
}

func newBackground(client *http.Client) *background {
	b := &background{client: client}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// Start returns after ctx has ended, and all that goes on with it.
func (b *background) Start(ctx context.Context) error {
	<-ctx.Done()
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.wait.Wait()
	b.client.CloseIdleConnections()
	return nil
}
