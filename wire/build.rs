//! Compiles the C side of `num::LongDouble`.

fn main() {
    println!("cargo::rerun-if-changed=src/num/longdouble.c");
    cc::Build::new().file("src/num/longdouble.c").std("c99").compile("flagstone_longdouble");
}
