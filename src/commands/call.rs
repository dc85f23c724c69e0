//! What the handler of a command on the connection has at hand.

use crate::node::Node;
use crate::session::Session;
use crate::worker::Worker;
use flagstone_wire::resp::Reply;
use std::rc::Rc;
use std::sync::Arc;

/// Session, node and worker.
pub struct Call<'a> {
    pub session: &'a mut Session,
    pub node: &'a Arc<Node>,
    pub worker: &'a Rc<Worker>,
    pub out: &'a mut Reply,
}
